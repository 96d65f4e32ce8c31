"""The protocol is explored exhaustively for small bounds, with a kill at any step; each mutant has a fault."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.ipc.queue.model import Bounds, explore
from tests.sizes import size

SMALL = Bounds(messages=2, capacity=1)
MISTAKES = Bounds(messages=4, capacity=2, readers=1, late=(), kills=0, mistakes=True)


@pytest.fixture(autouse=True)
def without_collections() -> Iterator[None]:
    """States are tuples without cycles: to look through all of them again and again takes a quarter of the time."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "bounds",
    [
        SMALL,
        Bounds(messages=2, capacity=1, late=(0, 1), kills=0),
        pytest.param(Bounds(messages=3, capacity=size(2, 1), late=()), marks=pytest.mark.full),
    ],
    ids=["one reader joins late", "both join late", "both from the beginning"],
)
def test_no_state_is_wrong(bounds: Bounds) -> None:
    found = explore(bounds)
    assert found.fault is None, "\n".join(found.steps)
    assert found.states > 5_000


def test_a_reader_that_is_taken_for_dead_returns_nothing_torn() -> None:
    found = explore(MISTAKES)
    assert found.fault is None, "\n".join(found.steps)
    found = explore(replace(MISTAKES, without="slot check"))
    assert found.fault is not None
    assert "torn message" in found.fault or "in place of" in found.fault


@pytest.mark.full
@pytest.mark.skipif(size(1, 0) == 0, reason="many states: make full")
@pytest.mark.parametrize("bounds", [Bounds(), Bounds(messages=3, capacity=1), replace(SMALL, kills=2)])
def test_no_state_is_wrong_in_larger_bounds(bounds: Bounds) -> None:
    found = explore(bounds)
    assert found.fault is None, "\n".join(found.steps)


@pytest.mark.parametrize(
    ("without", "fault"),
    [
        ("room", "torn message"),
        ("order", "in place of"),
        pytest.param("join fence", "message", marks=pytest.mark.full),
        pytest.param("join wake", "writer 0 sleeps", marks=pytest.mark.full),
        ("publish fence", "reader 0 sleeps"),
        pytest.param("sleep fence", "sleeps", marks=pytest.mark.full),
        pytest.param("advance fence", "writer 0 sleeps", marks=pytest.mark.full),
        pytest.param("wait fence", "writer 0 sleeps", marks=pytest.mark.full),
        ("dead readers", "writer 0 sleeps"),
        ("takeover position", ""),
    ],
)
def test_a_protocol_without_one_of_its_parts_is_found_wrong(without: str, fault: str) -> None:
    found = explore(replace(SMALL, without=without))
    assert found.fault is not None
    assert fault in found.fault, "\n".join(found.steps)
