"""Let stores wait for memory: a thread allocates pages that were not allocated ahead, and then the store continues.
Other clients are served meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from dataplane.copies.copying import CopyFailed, CopyThreads
from dataplane.core.inprocess import InProcess
from dataplane.gateways.lmcache.failures import OperationFailed, Reason, as_failed
from dataplane.gateways.lmcache.handlers.requests import LATER, Chunks, GatewayRequest, Result
from dataplane.gateways.lmcache.workers.named_pool import NamedPool
from dataplane.protocol.codes import ProtocolError

ROUNDS = 3
"""How often a store waits for pages if other stores take those that were prepared for it. After that, the loop
allocates the pages itself."""


class PageReadiness:
    """Start each store once the pages of its memory are allocated."""

    def __init__(
        self,
        cache: InProcess,
        pool: NamedPool,
        copying: CopyThreads,
        clock: Callable[[], float],
        failed: Callable[[str, OperationFailed], None],
    ) -> None:
        """Create the readiness check. `failed` counts stores that fail after their request was deferred."""
        self._cache = cache
        self._pool = pool
        self._copying = copying
        self._clock = clock
        self._failed = failed

    def when_ready(self, request: GatewayRequest, chunks: Chunks, store: Callable[[], Result]) -> Result:
        """Return the result of `store` if its memory is ready; otherwise return LATER, and call `store` on the loop
        later. Raise OperationFailed or ProtocolError on failure."""
        return LATER if self._waits(request, chunks, store, ROUNDS) else store()

    def _waits(
        self, request: GatewayRequest, chunks: Chunks, store: Callable[[], Result], rounds: int
    ) -> bool:
        """Start to allocate the pages that the store lacks. Return whether the store waits for them."""
        chunk_layout = chunks.instance.chunk_layout
        ranges = self._cache.next_ranges(chunks.transfer.space, chunks.keys, chunk_layout.chunk_bytes)
        lacking = self._pool.lacking(ranges) if ranges else []
        if not lacking:
            return False

        def work() -> None:
            try:
                self._pool.take(lacking)
            except OSError as error:
                raise CopyFailed(error.strerror or str(error)) from None

        def done(failed: CopyFailed | None) -> None:
            request.now = self._clock()
            try:
                if not chunks.instance.attached:
                    raise OperationFailed(Reason.UNKNOWN_INSTANCE, "the worker is gone")
                # If the machine refused the pages, the core gets the same refusal and handles it.
                if failed is None and rounds > 1 and self._waits(request, chunks, store, rounds - 1):
                    return
                result = store()
            except (OperationFailed, ProtocolError) as error:
                self._failed(request.operation.name, as_failed(error))
                result = request.operation.failure
            if result is not LATER:
                request.reply(result)

        return self._copying.submit(work, done)
