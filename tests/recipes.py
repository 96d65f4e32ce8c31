"""Code blocks of CONTRIBUTING.md, for the tests that run its recipes."""

import re
from pathlib import Path
from textwrap import dedent

CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"
_PYTHON = re.compile(r"^ *```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def blocks(title: str) -> list[str]:
    """Return the Python blocks below the heading with this title."""
    section = CONTRIBUTING.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    return [dedent(block) for block in _PYTHON.findall(section)]


def code(title: str) -> str:
    """Return the one Python block below the heading with this title."""
    (block,) = blocks(title)
    return block
