"""Let stores wait for memory: a thread allocates pages that were not allocated ahead, and then the store continues.
Other clients are served meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from dataplane.copies.copying import CopyFailed
from dataplane.gateways.lmcache.failures import OperationFailed, Reason
from dataplane.gateways.lmcache.handlers.parts import GatewayParts
from dataplane.gateways.lmcache.handlers.requests import LATER, Chunks, GatewayRequest, Result
from dataplane.protocol.codes import ProtocolError

ROUNDS = 3
"""How often a store waits for pages if other stores take those that were prepared for it. After that, the loop
allocates the pages itself."""


class PageReadiness:
    """Start each store once the pages of its memory are allocated."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts

    def when_ready(self, request: GatewayRequest, chunks: Chunks, store: Callable[[], Result]) -> Result:
        """Return the result of `store` if its memory is ready; otherwise return LATER, and call `store` on the loop
        later. Raise OperationFailed or ProtocolError on failure."""
        return LATER if self._waits(request, chunks, store, ROUNDS) else store()

    def _waits(self, request: GatewayRequest, chunks: Chunks, store: Callable[[], Result], rounds: int) -> bool:
        """Start to allocate the pages that the store lacks. Return whether the store waits for them."""
        chunk_layout = chunks.instance.chunk_layout
        ranges = self._parts.cache.next_ranges(chunks.transfer.space, chunks.keys, chunk_layout.chunk_bytes)
        lacking = self._parts.pool.lacking(ranges) if ranges else []
        if not lacking:
            return False

        def work() -> None:
            try:
                self._parts.pool.take(lacking)
            except OSError as error:
                raise CopyFailed(error.strerror or str(error)) from None

        def done(failed: CopyFailed | None) -> None:
            request.now = self._parts.clock()
            try:
                if not chunks.instance.attached:
                    raise OperationFailed(Reason.UNKNOWN_INSTANCE, "the worker is gone")
                # If the machine refused the pages, the core gets the same refusal and handles it.
                if failed is None and rounds > 1 and self._waits(request, chunks, store, rounds - 1):
                    return
                result = store()
            except (OperationFailed, ProtocolError) as error:
                result = self._parts.failed(request, error)
            if result is not LATER:
                request.reply(result)

        return self._parts.copying.submit(work, done)
