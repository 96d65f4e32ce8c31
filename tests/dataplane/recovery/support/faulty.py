"""Data planes with one fault each: `python -m tests.dataplane.recovery.support.faulty`.

The name of the fault is in TEST_FAULT.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from dataplane.__main__ import main
from dataplane.gateways.lmcache.handlers.copies import CopyHandlers
from dataplane.gateways.lmcache.handlers.requests import GatewayRequest, Result
from dataplane.gateways.lmcache.wire.messages import Key
from dataplane.gateways.lmcache.zmtp.connections import ZmtpPeer
from dataplane.memory.pages import PageTaker
from dataplane.recovery import adoption

KILLED_AFTER_S = 2.0
"""The request that waits for memory is written down by then."""


class Defect(BaseException):
    """What serves a request catches every `Exception`, and the signal may arrive there."""


def fails_on_sigalrm() -> None:
    """Its loop fails with an error that nothing catches."""

    def fail(*_: object) -> None:
        raise Defect("a defect")

    signal.signal(signal.SIGALRM, fail)


def small_journal() -> None:
    """It is of a release whose id journal was smaller, whatever `max_blocks` said."""
    vars(adoption)["half_bytes_for"] = lambda max_blocks: 32 << 20


def killed_while_waiting() -> None:
    """It is killed while a store of its gateway waits for memory."""

    def take(self: PageTaker, offset: int, nbytes: int) -> None:
        time.sleep(KILLED_AFTER_S)
        os.kill(os.getpid(), signal.SIGKILL)

    PageTaker.take = take  # type: ignore[method-assign]


def killed_on_answer() -> None:
    """It is killed after its gateway answered a `prepare_store`, and before it removed the request: the client has the
    answer, and the next data plane finds the request."""
    before, flush_before = CopyHandlers.prepare_store, ZmtpPeer.flush
    answering: list[ZmtpPeer] = []

    def prepare_store(
        self: CopyHandlers,
        request: GatewayRequest,
        key: Key,
        number: int,
        skipped_chunks: list[list[int]] | None = None,
    ) -> Result:
        answering.append(request.peer)
        return before(self, request, key, number, skipped_chunks)

    def flush(self: ZmtpPeer) -> None:
        sends_answer = bool(self.answers)
        flush_before(self)
        if sends_answer and self in answering:
            os.kill(os.getpid(), signal.SIGKILL)

    CopyHandlers.prepare_store = prepare_store  # type: ignore[method-assign]
    ZmtpPeer.flush = flush  # type: ignore[method-assign]


if __name__ == "__main__":
    faults = (fails_on_sigalrm, small_journal, killed_while_waiting, killed_on_answer)
    {each.__name__: each for each in faults}[os.environ["TEST_FAULT"]]()
    sys.exit(main())
