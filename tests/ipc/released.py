"""Waits for the end of shared memory.

Data planes of other tests sample the queues and stores of the user, and hold the memory of each for an instant.
"""

from __future__ import annotations

import time

from dataplane.ipc import memory

WAIT_S = 60.0


def until_released(identity: str) -> None:
    """Wait until no process holds the memory of a queue or a store."""
    deadline = time.monotonic() + WAIT_S
    while holders := list(memory.find(identity=identity)):
        assert time.monotonic() < deadline, f"still held: {holders}"
        time.sleep(0.01)
