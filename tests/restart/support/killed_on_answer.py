"""A data plane that is killed after its gateway answered a `prepare_store`, and before it removed the request.

The client has the answer, and the next data plane finds the request. Run it with
`python -m tests.restart.support.killed_on_answer`.
"""

from __future__ import annotations

import os
import signal
import sys

from dataplane.__main__ import main
from dataplane.gateways.lmcache.handlers.client_copies import ClientCopyHandlers
from dataplane.gateways.lmcache.handlers.requests import GatewayRequest, Result
from dataplane.gateways.lmcache.wire.messages import Key
from dataplane.gateways.lmcache.zmtp.connections import ZmtpPeer, ZmtpServer

_prepare_store, _flush = ClientCopyHandlers.prepare_store, ZmtpServer.flush
_answering: list[ZmtpPeer] = []


def prepare_store(self: ClientCopyHandlers, request: GatewayRequest, key: Key, number: int) -> Result:
    _answering.append(request.peer)
    return _prepare_store(self, request, key, number)


def flush(self: ZmtpServer, connection: ZmtpPeer) -> None:
    sends_answer = bool(connection.answers)
    _flush(self, connection)
    if sends_answer and connection in _answering:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    ClientCopyHandlers.prepare_store = prepare_store  # type: ignore[method-assign]
    ZmtpServer.flush = flush  # type: ignore[method-assign]
    sys.exit(main())
