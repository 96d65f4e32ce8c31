"""A data plane that is killed once its gateway answered a `prepare_store`, and before it took the request out:
`python -m tests.restart.killed_on_answer`. The client has the answer, and the next data plane finds the request."""

from __future__ import annotations

import os
import signal
import sys

from dataplane.__main__ import main
from dataplane.transport.lmcache.connections import Connection, Connections
from dataplane.transport.lmcache.messages import Key
from dataplane.transport.lmcache.requests import Asked, Result
from dataplane.transport.lmcache.slots import Slots

_prepare_store, _flush = Slots.prepare_store, Connections.flush
_answering: list[Connection] = []


def prepare_store(self: Slots, asked: Asked, key: Key, number: int) -> Result:
    _answering.append(asked.peer)
    return _prepare_store(self, asked, key, number)


def flush(self: Connections, connection: Connection) -> None:
    _flush(self, connection)
    if connection in _answering:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Slots.prepare_store = prepare_store  # type: ignore[method-assign]
    Connections.flush = flush  # type: ignore[method-assign]
    sys.exit(main())
