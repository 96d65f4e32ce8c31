"""TCP ports on loopback for processes that must be told one before they start.

They are below those that the kernel gives to whoever asks for any (so no connection of another test takes one between
this call and the start), and each is given once in ten thousand times, whichever test run of this machine asks.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

FIRST, END = 10_000, 20_000
"""Above are the ports of `tests.fleet`."""
LAST_GIVEN = Path(f"/tmp/larder-test-port-{os.getuid()}")


def free_port() -> int:
    """A port that nobody listens at."""
    with LAST_GIVEN.open("a+", encoding="ascii") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        kept.seek(0)
        port = int(kept.read() or FIRST)
        for _ in range(FIRST, END):
            port = port + 1 if port + 1 < END else FIRST
            if not _is_taken(port):
                break
        else:
            raise AssertionError(f"all ports from {FIRST} to {END} are taken")
        kept.truncate(0)
        kept.write(str(port))
    return port


def _is_taken(port: int) -> bool:
    try:
        with socket.create_server(("0.0.0.0", port)):
            return False
    except OSError:
        return True
