"""Data planes of one state directory that follow each other, each with the memory of the one before."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataplane.holding.requests import signal_holders
from tests.dataplane.recovery.support.relay import Relay


@pytest.fixture
def make_plane(socket_dir: Path) -> Iterator[Callable[..., Relay]]:
    """`make_plane(pool_bytes="1MiB")`: not started yet; killed after the test, with its holder."""
    made: list[Relay] = []

    def new(**settings: str) -> Relay:
        made.append(Relay(socket_dir, {"dataplane__keep_memory_s": "60", **settings}))
        return made[-1]

    yield new
    for each in made:
        each.end()
    signal_holders(socket_dir, signal.SIGKILL)


@pytest.fixture
def plane(make_plane: Callable[..., Relay]) -> Relay:
    return make_plane().start()
