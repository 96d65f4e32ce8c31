"""Golden files: what is published is frozen as text under `tests/golden/` and changes only on purpose.

`make golden` rewrites them from what the code does now; the diff is then read and committed.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Golden:
    """Call it with a name and the text that must equal the file of that name."""

    update: bool
    folder: Path = FOLDER

    def __call__(self, name: str, text: str) -> None:
        __tracebackhide__ = True
        path = self.folder / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"tests/golden/{name} does not exist: make it with `make golden`", pytrace=False)
        kept = path.read_text(encoding="utf-8")
        if kept != text:
            diff = difflib.unified_diff(
                kept.splitlines(), text.splitlines(), f"tests/golden/{name}", "now", lineterm="", n=2
            )
            lines = "\n".join(list(diff)[:200])
            pytest.fail(f"{name} changed; if that is wanted, run `make golden`\n{lines}", pytrace=False)
