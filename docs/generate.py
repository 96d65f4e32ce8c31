"""Write the parts of the documentation that follow from the code: `python docs/generate.py`.

A test holds the written files against what this module says, so they cannot grow old.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

from dataplane.protocol.codes import Code, ReserveOutcome  # noqa: E402
from dataplane.protocol.states import TRANSITIONS, BlockStep, State  # noqa: E402
from docs import settings_table  # noqa: E402

NOTE = "<!-- Made by docs/generate.py; change the code instead. -->"

SECTIONS = (
    (1, 20, "What was sent could not be understood or served"),
    (20, 40, "A field has a value that is never right"),
    (40, 60, "A request contradicts the state"),
    (60, 80, "A key was refused although everything is well formed"),
    (80, 100, "Said by the client library alone"),
    (100, 110, "Requests and snapshots of the management plane"),
    (110, 1000, "Expelling an engine"),
)


def errors() -> str:
    """`docs/errors.md`: every code of the data plane."""
    lines = [
        "# Codes of the data plane",
        "",
        NOTE,
        "",
        "Why a request, or one key of it, was not served. Numbers are never reused and names never change their "
        "meaning. Engines see the number, metrics and events carry the name in lower case.",
    ]
    for low, high, title in SECTIONS:
        lines += ["", f"## {title}", "", "| number | name | means |", "|---:|---|---|"]
        lines += [
            f"| {int(code)} | `{code.name.lower()}` | {_cell(code.__doc__)} |"
            for code in Code
            if low <= code < high
        ]
    lines += ["", "## Outcomes of `reserve` that are no refusal", "", "| number | name |", "|---:|---|"]
    lines += [f"| {int(outcome)} | `{outcome.name.lower()}` |" for outcome in ReserveOutcome]
    return "\n".join(lines) + "\n"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


def block_states() -> str:
    """`docs/block-states.md`: the life of a block, drawn from its table."""
    lines = [
        "# The life of a block",
        "",
        NOTE,
        "",
        "Only a READY block may be read. Leases and pins are no states: a lease is a count on a READY block, a pin "
        "is a mark. The theory stands in `dataplane/protocol/states.py` and `dataplane/protocol/layout.py`.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {State.FREE.name}",
    ]
    lines += [
        f"    {before.name} --> {after.name}: {step.name.lower()}"
        for (before, step), after in TRANSITIONS.items()
    ]
    lines += ["```", "", "| state | " + " | ".join(step.name.lower() for step in BlockStep) + " |"]
    lines += ["|---|" + "---|" * len(BlockStep)]
    for state in State:
        cells = [TRANSITIONS[state, step].name if (state, step) in TRANSITIONS else "" for step in BlockStep]
        lines.append(f"| {state.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def settings() -> str:
    """`docs/settings.md`: every setting."""
    return settings_table.page(NOTE)


FILES = {"errors.md": errors, "block-states.md": block_states, "settings.md": settings}


def main() -> None:
    for name, make in FILES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
