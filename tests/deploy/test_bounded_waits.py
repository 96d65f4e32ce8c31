"""Every wait of a thread for another thread or process has a bound, so that no test run and no stop lasts forever."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAITS = frozenset({"join", "wait", "communicate"})
UNBOUNDED = {"tests/gpu/role_parts.py: os.wait()": "the test that started this process kills it"}
"""File and source of each call that may wait without a bound, and the reason."""


def unbounded(file: Path) -> Iterator[tuple[int, str]]:
    """Line and source of each call without arguments in WAITS that is not awaited: asyncio's can be cancelled."""
    text = file.read_text()
    if not any(f".{name}()" in text for name in WAITS):  # to parse every file takes seconds
        return
    tree = ast.parse(text)
    not_waited = {
        id(each) for node in ast.walk(tree) if isinstance(node, ast.Await | ast.Call) for each in operands(node)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in WAITS
            and not node.args
            and not node.keywords
            and id(node) not in not_waited
        ):
            yield node.lineno, ast.unparse(node)


def operands(node: ast.Await | ast.Call) -> list[ast.expr]:
    """What is awaited, also by `wait_for(child.wait(), 5)` and `create_task(event.wait())`."""
    if isinstance(node, ast.Await):
        return [node.value]
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return node.args if name in {"wait_for", "create_task", "gather"} else []


@pytest.mark.parametrize("folder", ["app", "dataplane", "benchmarks", "examples", "tests"])
def test_no_thread_waits_without_a_bound(folder: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {source}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, source in unbounded(file)
        if f"{file.relative_to(ROOT)}: {source}" not in UNBOUNDED
    ]
    assert found == [], "give each of these calls a timeout"


def test_an_unbounded_wait_is_found(tmp_path: Path) -> None:
    file = tmp_path / "waits.py"
    file.write_text(
        "async def f(): await process.wait(); await wait_for(process.wait(), 1)\n"
        "def g(): process.wait(); thread.join(5); ','.join(names)\n"
    )
    assert list(unbounded(file)) == [(2, "process.wait()")]
