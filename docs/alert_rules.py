"""Thresholds of the alert rules, from the table of findings."""

from __future__ import annotations

import re
from pathlib import Path

from app.schemas.views.findings import CRASHES, CRASHES_S, FULL_SHARE, ID_JOURNAL_SHARE, REFUSED_SHARE, THRASHING_HITS

RULES = Path(__file__).parents[1] / "deploy" / "prometheus" / "larder.rules.yml"
_NUMBER = r"\d+(?:\.\d+)?"
THRESHOLDS: tuple[tuple[str, str, str], ...] = (
    (r"larder_pool_pinned_bytes\) > ", f"{FULL_SHARE:g}", r" \* max by \(node\) \(larder_pool_pin_budget_bytes"),
    (r"Pins keep over ", f"{FULL_SHARE:.0%}", r" %"),
    (
        r"larder_id_journal_bytes\) > ",
        f"{ID_JOURNAL_SHARE:g}",
        r" \* max by \(node\) \(larder_id_journal_capacity_bytes",
    ),
    (r"clamp_min\(", f"{REFUSED_SHARE:g}", r" \* max by \(node, tenant\) \(rate\(larder_tenant_requested_blocks_total"),
    (r"More than ", f"{REFUSED_SHARE:.0%}", r" % of the blocks that the tenant requests"),
    (r"larder_data_plane_restarts_total\[", f"{CRASHES_S / 60:.0f}", r"m\]"),
    (r"larder_data_plane_restarts_total\[\d+m\]\)\) >= ", f"{CRASHES}", r"\n"),
    (r"It ended unexpectedly at least ", f"{CRASHES}", r" times within"),
    (r"It ended unexpectedly at least \d+ times within ", f"{CRASHES_S / 60:.0f}", r" minutes"),
    (r"and fewer than ", f"{THRASHING_HITS:.0%}", r" % of the requested\s+blocks"),
)
"""What stands before a threshold, its value, and what follows it."""


def alert_rules() -> str:
    """Return the rules of Prometheus with these thresholds. Raise ValueError if one has no place, or several."""
    text = RULES.read_text(encoding="utf-8")
    for before, value, after in THRESHOLDS:
        pattern = f"({before}){_NUMBER}({after})"
        text, count = re.subn(pattern, rf"\g<1>{value.removesuffix('%')}\g<2>", text)
        if count != 1:
            raise ValueError(f"{RULES.name}: expected the threshold {pattern!r} once, got it {count} times")
    return text
