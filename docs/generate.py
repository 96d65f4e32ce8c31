"""Write the parts of the documentation that follow from the code: `python docs/generate.py`.

A test holds the written files against what this module says, so they cannot grow old.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

from app.http.problems import KINDS, TYPE_PREFIX  # noqa: E402
from dataplane.protocol.codes import Code, ReserveOutcome  # noqa: E402
from dataplane.protocol.states import TRANSITIONS, BlockStep, State  # noqa: E402
from docs import (  # noqa: E402
    alert_rules,
    connector_tables,
    listener_tables,
    log_lines,
    reference_tables,
    settings_table,
    tier_tables,
)

NOTE = "<!-- Made by docs/generate.py; change the code instead. -->"

SECTIONS = (
    (1, 20, "Malformed or unsupported requests"),
    (20, 40, "Invalid field values"),
    (40, 60, "Conflicts with the current state"),
    (60, 80, "Refused blocks"),
    (80, 100, "Reported by the client library only"),
    (100, 110, "Requests and snapshots of the management plane"),
    (110, 1000, "Expelling an engine"),
)


def errors() -> str:
    """`reference/errors.md`: every problem of the API and every code of the data plane."""
    lines = [
        "# Error codes",
        "",
        NOTE,
        "",
        "## Problems of the API",
        "",
        "The API answers failures with `application/problem+json` (RFC 9457): "
        f"`type` is `{TYPE_PREFIX}` and the name below.",
        "",
        "| type | status | means |",
        "|---|---:|---|",
        *(f"| `{name}` | {kind.status} | {kind.title} |" for name, kind in KINDS.items()),
        "",
        "## Codes of the data plane",
        "",
        "A code says why a request, or one of its keys, was refused. Numbers are never reused and names never change "
        "their meaning. Engines see the number; metrics and events carry the name.",
    ]
    for low, high, title in SECTIONS:
        lines += ["", f"### {title}", "", "| number | name | means |", "|---:|---|---|"]
        lines += [
            f"| {int(code)} | `{code.name.lower()}` | {reference_tables.cell(code.__doc__)} |"
            for code in Code
            if low <= code < high
        ]
    lines += ["", "### Outcomes of `reserve` that are not refusals", "", "| number | name |", "|---:|---|"]
    lines += [f"| {int(outcome)} | `{outcome.name.lower()}` |" for outcome in ReserveOutcome]
    return "\n".join(lines) + "\n"


def block_states() -> str:
    """`reference/block-states.md`: the life of a block, drawn from its table."""
    lines = [
        "# Block states",
        "",
        NOTE,
        "",
        "Engines read READY blocks only. Leases and pins are not states: a lease is a count on a READY block, a pin "
        "is a mark. `dataplane/protocol/states.py` and `dataplane/protocol/layout.py` explain why this is safe.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {State.FREE.name}",
    ]
    lines += [
        f"    {before.name} --> {after.name}: {step.name.lower()}" for (before, step), after in TRANSITIONS.items()
    ]
    lines += ["```", "", "| state | " + " | ".join(step.name.lower() for step in BlockStep) + " |"]
    lines += ["|---|" + "---|" * len(BlockStep)]
    for state in State:
        cells = [TRANSITIONS[state, step].name if (state, step) in TRANSITIONS else "" for step in BlockStep]
        lines.append(f"| {state.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def settings() -> str:
    """`reference/settings.md`: every setting."""
    return settings_table.page(NOTE)


FILES: dict[str, Callable[[], str]] = {
    "../deploy/prometheus/larder.rules.yml": alert_rules.alert_rules,
    "reference/block-states.md": block_states,
    "reference/cli.md": lambda: reference_tables.commands(NOTE),
    "reference/errors.md": errors,
    "reference/events.md": lambda: reference_tables.event_page(NOTE),
    "reference/findings.md": lambda: reference_tables.findings(NOTE),
    "reference/listeners.md": lambda: listener_tables.page(NOTE),
    "reference/log-lines.md": lambda: log_lines.page(NOTE),
    "reference/metrics.md": lambda: reference_tables.metric_page(NOTE),
    "reference/routes.md": lambda: reference_tables.routes(NOTE),
    "reference/series.md": lambda: reference_tables.series_page(NOTE),
    "reference/settings.md": settings,
    "reference/sglang-backend.md": lambda: connector_tables.sglang(NOTE),
    "reference/tier-reasons.md": lambda: tier_tables.reasons(NOTE),
    "reference/tier-types.md": lambda: tier_tables.page(NOTE),
    "reference/vllm-connector.md": lambda: connector_tables.vllm(NOTE),
    "reference/wire.md": lambda: reference_tables.wire(NOTE),
}


def main() -> None:
    for name, make in FILES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
