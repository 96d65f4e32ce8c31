"""The page of log lines, from the calls of structlog in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLANES = {"app": "manager", "dataplane": "data plane"}
BOTH = ROOT / "dataplane" / "base"
"""Code that both planes run."""
LEVELS = ("debug", "info", "warning", "error", "exception", "log")
EXPLAIN = ("effect", "fix", "reason")
"""Fields whose text, where the code states it, says what the line means."""
_LINE = re.compile(r"[a-z_]+\.[a-z_]+")
_LOGGER = re.compile(r"(?:self\.)?_?(?:access_)?log|structlog\.get_logger\(\)")


@dataclass
class LogLine:
    """A line that the code may log, from all places that log it."""

    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    said: set[str] = field(default_factory=set)
    """Texts that the code states for the fields in `EXPLAIN`."""
    planes: set[str] = field(default_factory=set)


def page(note: str) -> str:
    """`reference/log-lines.md`: every line that is not an event."""
    lines = [
        "# Log lines",
        "",
        note,
        "",
        "A line has its name as `event`, with `level`, `timestamp`, and these fields; those of the level `error` with "
        "`exception` have a traceback. In addition, data planes log [events](events.md) that concern operators, under "
        "their names. Connectors log sentences through the logger of their engine. "
        "[Traces and logs](../operate/observability.md) describes the format.",
        "",
        "| line | of | level | fields | what |",
        "|---|---|---|---|---|",
    ]
    for name, line in sorted(found().items()):
        fields = ", ".join(f"`{each}`" for each in sorted(line.fields))
        said = "; ".join(sorted(line.said)).replace("|", "\\|")
        lines.append(
            f"| `{name}` | {', '.join(sorted(line.planes))} | {', '.join(sorted(line.levels))} | {fields} | {said} |"
        )
    return "\n".join(lines) + "\n"


def found() -> dict[str, LogLine]:
    """Return the lines by name. Raises ValueError for a call whose name this module cannot read."""
    lines: dict[str, LogLine] = {}
    for folder, plane in PLANES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "import structlog" not in text:  # sentences, through the logger of an engine
                continue
            tree = ast.parse(text)
            for call, around in _calls(tree):
                for name in _names(call, around, tree, path):
                    line = lines.setdefault(name, LogLine())
                    line.planes |= {*PLANES.values()} if path.parent == BOTH else {plane}
                    line.levels.add(_level(call))
                    line.fields |= {each.arg for each in call.keywords if each.arg and each.arg != "exc_info"}
                    line.said |= {
                        str(each.value.value)
                        for each in call.keywords
                        if each.arg in EXPLAIN and isinstance(each.value, ast.Constant)
                    }
    return lines


def _calls(tree: ast.Module) -> Iterator[tuple[ast.Call, ast.AST]]:
    """Yield each call of a logger with the function around it."""
    stack: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while stack:
        node, around = stack.pop()
        if isinstance(node, ast.Call) and _is_log(node):
            yield node, around
        inner = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else around
        stack += [(child, inner) for child in ast.iter_child_nodes(node)]


def _is_log(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr in LEVELS
        and _LOGGER.fullmatch(ast.unparse(call.func.value)) is not None
    )


def _level(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Attribute)
    return {"exception": "error with `exception`", "log": "info or debug"}.get(call.func.attr, call.func.attr)


def _names(call: ast.Call, around: ast.AST, tree: ast.AST, path: Path) -> list[str]:
    """Return the names that a call may log; none for an event."""
    first = call.args[_level(call) == "info or debug"] if call.args else None
    if isinstance(first, ast.Call) and ast.unparse(first.func) == "name_of":
        return []
    if isinstance(first, ast.Name):
        texts = _constants_of(first.id, around, tree)
    else:
        texts = [each.value for each in ast.walk(first) if isinstance(each, ast.Constant)] if first else []
    if names := [text for text in texts if isinstance(text, str) and _LINE.fullmatch(text)]:
        return names
    raise ValueError(f"{path.relative_to(ROOT)}:{call.lineno}: expected the name of a log line, such as 'node.lost'")


def _constants_of(name: str, around: ast.AST, tree: ast.AST) -> list[object]:
    """Return the constants that a function assigns to a variable, has as defaults, or is called with."""
    values: list[ast.AST] = [
        node.value
        for node in ast.walk(around)
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == name for target in node.targets)
    ]
    if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
        values += around.args.defaults
        values += [
            value
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == f"self.{around.name}"
            for value in node.args
        ]
    return [each.value for value in values for each in ast.walk(value) if isinstance(each, ast.Constant)]
