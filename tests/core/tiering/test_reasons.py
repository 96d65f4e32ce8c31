"""Each reason that the code counts is in a table, and so in the documentation."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from dataplane.core.tiering import outcomes, reasons
from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers import codecs

FOLDER = Path(reasons.__file__).parent


def counted() -> Iterator[tuple[str, str, str]]:
    """Yield the object, the method and the reason of each call that counts a block by a constant reason."""
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            if node.func.attr in {"refuse", "lose", "count_lost"}:
                for each in ast.walk(node.args[0]):
                    if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value:
                        yield ast.unparse(node.func.value), node.func.attr, each.value


def test_each_reason_is_in_its_table() -> None:
    found = list(counted())
    moved = {reason for of, method, reason in found if method == "refuse" and of.endswith("state")}
    refused = {reason for of, method, reason in found if method == "refuse" and not of.endswith("state")}
    lost = {reason for of, method, reason in found if method != "refuse"}
    assert {"waiting", "away", "size"} <= refused
    assert refused <= reasons.REFUSED.keys()
    assert {"memory", "clock"} <= lost <= reasons.LOST.keys()
    everything = {*reasons.REFUSED, *reasons.LOST, *reasons.NOT_COMPRESSED, *reasons.NOT_MOVED}
    assert {"gone", "pinned"} <= moved <= everything
    assert outcomes.HUNG in reasons.NOT_MOVED


def test_each_outcome_of_a_call_is_in_the_tables() -> None:
    stores = {Outcome.FULL, Outcome.LATE, Outcome.FAILED}
    assert {outcome.value for outcome in stores} <= reasons.REFUSED.keys()
    loads = {*Outcome} - {Outcome.OK, Outcome.FULL}
    assert {outcome.value for outcome in loads} <= reasons.LOST.keys()


def test_each_reason_of_a_codec_is_in_its_table() -> None:
    raised = {
        node.args[0].value
        for path in Path(codecs.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "NotEncoded"
        and isinstance(node.args[0], ast.Constant)
    }
    assert raised == reasons.NOT_COMPRESSED.keys()
