"""Input that is nested too deeply is refused as other input that cannot be decoded.

Decoders raise RecursionError for it, which is no ValueError.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECODERS = ("json.loads", "json.decode", "msgpack.decode", "decoder.decode", "yaml.safe_load", "tomllib.load")
ERRORS = frozenset({"ValueError", "DecodeError", "ValidationError", "TOMLDecodeError", "YAMLError"})
TAKE_DEEP_INPUT = frozenset({"RecursionError", "Exception"})


def handlers_without_it(file: Path) -> Iterator[int]:
    """Yield the line of each `try` that decodes and catches invalid input, but not input that is nested too deeply."""
    text = file.read_text()
    if not any(name in text for name in DECODERS):
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Try):
            continue
        calls = (call for line in node.body for call in ast.walk(line) if isinstance(call, ast.Call))
        caught = {
            name.attr if isinstance(name, ast.Attribute) else name.id
            for handler in node.handlers
            for name in ast.walk(handler.type or ast.Name("Exception"))
            if isinstance(name, ast.Attribute | ast.Name)
        }
        decodes = any(ast.unparse(call.func).endswith(DECODERS) for call in calls)
        if decodes and caught & ERRORS and not caught & TAKE_DEEP_INPUT:
            yield node.lineno


@pytest.mark.parametrize("folder", ["app", "dataplane"])
def test_invalid_input_includes_deeply_nested_input(folder: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line in handlers_without_it(file)
    ]
    assert found == [], "catch RecursionError too"
