"""Findings as lines: the server decides what is wrong (`GET /api/v1/findings`), and commands print it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Json = Mapping[str, Any]
MAX_NAMED = 4
"""Most types of findings that one sentence names."""
_IN_FIRST_LINE = ("no_node", "no_node_connected", "not_ready", "quotas_not_enforced")
"""Types that the first line of `larder status` says in its own words."""


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%SZ")


def author(change: Json, *, timed: bool = True) -> str:
    """Return the actor, time and audit entry of a change: `by alice at 12:00:00Z (audit entry 7)`."""
    by = f"by {change['actor']}" if change["actor"] else ""
    when = f"at {at(change['at'])}" if timed else ""
    entry = "" if change["audit_id"] is None else f"(audit entry {change['audit_id']})"
    return " ".join(filter(None, (by, when, entry)))


def line(finding: Json) -> str:
    """Return what is wrong, since when, and why."""
    since, ended_at = finding["since"], finding["ended_at"]
    when = ""
    if ended_at is not None:
        when = f" at {at(ended_at)}" if since in (None, ended_at) else f" from {at(since)} to {at(ended_at)}"
    elif since is not None:
        when = f" since {at(since)}"
    detail = f": {finding['detail']}" if finding["detail"] else ""
    tenant = f" ({finding['subject']['tenant']})" if finding["subject"]["kind"] == "pin" else ""
    return f"{finding['what']}{tenant}{when}{detail}"


def lines(findings: Sequence[Json]) -> list[str]:
    """Return a line for each finding, with the change before it."""
    texts = []
    for finding in findings:
        change = finding["likely_change"]
        before = f"; the latest change before: {change['summary']} {author(change)}" if change else ""
        texts.append(f"{line(finding)}{before}")
    return texts


def trouble(findings: Sequence[Json]) -> str:
    """Return what is wrong now as the end of a sentence; empty if all is well."""
    current = [
        finding
        for finding in findings
        if finding["severity"] != "info" and finding["ended_at"] is None and finding["code"] not in _IN_FIRST_LINE
    ]
    counts: Counter[str] = Counter()
    for finding in current:
        counts[finding["code"]] += finding.get("count", 1)  # a server of an older release does not report it
    firsts = {finding["code"]: _uncapitalized(finding["what"]) for finding in reversed(current)}
    parts = [
        firsts[code] if count == 1 else f"{count} times {code.replace('_', ' ')}"
        for code, count in list(counts.items())[:MAX_NAMED]
    ]
    return " and ".join(parts) + (" and more" if len(counts) > MAX_NAMED else "")


def fix(finding: Json) -> str:
    """Return what to do, with the section of the runbook."""
    see = f"; see {finding['runbook'].removeprefix('/')}" if finding["runbook"] else ""
    return f"{finding['to_do']}{see}"


def _uncapitalized(text: str) -> str:
    return text[0].lower() + text[1:] if text[1:2].islower() else text
