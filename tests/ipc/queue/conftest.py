from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.ipc.queue import MessageQueue
from tests.ipc.queue.peers import Peers


@pytest.fixture
def queue() -> Iterator[MessageQueue]:
    with MessageQueue("tests", capacity_bytes=1 << 16) as queue:
        yield queue


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    peers = Peers(tmp_path / "peers.log")
    try:
        yield peers
    finally:
        peers.close()
