"""The cache of a data plane for the time after it: the record of its contents, and its end."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import numpy as np
import structlog

from dataplane.core.node import Node
from dataplane.holding.connection import HolderConnection
from dataplane.holding.record import boot_id
from dataplane.memory.memory import NodeMemory
from dataplane.protocol.layout import H_CLOSED
from dataplane.protocol.states import STATE_MASK, State
from dataplane.recovery.record import CacheRecord
from dataplane.recovery.state import StateDirectory

log = structlog.stdlib.get_logger()


class Ending(Enum):
    """How a data plane ends, and the effect on its memory."""

    RELEASE = "release"
    """Mark the memory as released: engines stop reading it, and the machine gets it back."""
    KEEP = "keep"
    """Leave the memory to the holder for `keep_memory_s`."""
    HAND_OVER = "hand_over"
    """Leave memory and sockets to the holder for a data plane that starts at once. Also the end by an error that
    nothing caught."""


class RetainedCache:
    """The cache of one data plane: its record while it serves, and its memory when it ends."""

    def __init__(
        self,
        state: StateDirectory,
        node: Node,
        memory: NodeMemory,
        clock: Callable[[], float],
        keep_memory_s: float,
        holder: HolderConnection,
    ) -> None:
        self._state = state
        self._node = node
        self._memory = memory
        self._clock = clock
        self._keep_memory_s = keep_memory_s
        self._holder = holder
        self._recorded: CacheRecord | None = None

    def record(self) -> None:
        """Record how much is cached, if the amount has changed, or nothing of this process is recorded yet."""
        now, before = self._cache_record(), self._recorded
        if before is None or (now.blocks, now.bytes) != (before.blocks, before.bytes):
            self._recorded = now
            self._state.record(now)

    def _cache_record(self, *, exact: bool = False) -> CacheRecord:
        """Return how much is cached. `exact` counts the READY blocks, which reads every control word; otherwise blocks
        that are being written count, too."""
        pool = self._node.pool.stats()
        blocks = pool.blocks
        if exact:
            state = self._memory.index.control & np.uint64(STATE_MASK)
            blocks = int(np.count_nonzero((state == State.READY) | (state == State.EVICTING)))
        return CacheRecord(blocks, pool.ready_bytes, self._clock(), boot_id())

    def end(self, ending: Ending) -> bool:
        """Leave the memory to the holder, or mark it as released. Return whether it was released."""
        cache_record = self._cache_record(exact=True)
        if ending is Ending.HAND_OVER or (ending is Ending.KEEP and cache_record.blocks and self._leave(cache_record)):
            self._state.record(cache_record)
            return False
        self._memory.index.header[H_CLOSED] = 1  # engines stop reading it
        self._holder.release()
        if not cache_record.blocks:
            pass  # and nothing is lost
        elif ending is Ending.KEEP:
            cache_record.reason = "no holder had the memory when the data plane stopped"
        else:
            how = "with dataplane.keep_memory_s = 0" if not self._keep_memory_s else "and its memory released"
            cache_record.reason = f"the data plane was stopped {how}"
            cache_record.on_purpose = True
        self._state.record(cache_record)
        return True

    def _leave(self, cache_record: CacheRecord) -> bool:
        """Return whether the holder keeps the memory."""
        pid = self._holder.stop(cache_record.blocks, cache_record.bytes)
        if not pid:
            log.warning("memory.not_kept", reason="the holder does not answer", effect="the next start is cold")
            return False
        log.info(
            "memory.kept",
            blocks=cache_record.blocks,
            bytes=cache_record.bytes,
            seconds=self._keep_memory_s,
            pid=pid,
            next="start again within this time, or release the memory with `larder down`",
        )
        return True
