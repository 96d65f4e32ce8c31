"""The cache after its data plane has ended: the holder of its memory, and the record of its contents."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import structlog

from dataplane.core.node import Node
from dataplane.memory.inherited import NAMED
from dataplane.memory.memory import NodeMemory
from dataplane.protocol.engine import SOCKETS
from dataplane.protocol.keeper import VERSION, Keep
from dataplane.protocol.layout import H_CLOSED, H_MEMORY
from dataplane.protocol.states import STATE_MASK, State
from dataplane.recovery import kept
from dataplane.recovery.ending import Ending
from dataplane.recovery.kept import KeeperFailed, KeeperSilent, KeptMemory
from dataplane.recovery.record import CacheRecord, boot_id
from dataplane.recovery.service_manager import ServiceManager
from dataplane.state import StateDirectory

WARM_STARTS = 3
"""Number of starts with stored memory that may end before they serve."""
SILENT_S = 8.0
"""Seconds for which a keeper that does not answer is tried again."""
RETRY_S = 0.1

log = structlog.stdlib.get_logger()


def find_keeper(folder: Path) -> tuple[KeptMemory | None, str]:
    """Return the memory that the keeper of a state directory holds, if any, and why it does not hand it over.

    A keeper that does not answer is tried again for SILENT_S; SIGCONT wakes one that was stopped.
    """
    deadline = time.monotonic() + SILENT_S
    failure = ""
    while True:
        try:
            found = KeptMemory.find(folder)
            return found, "" if found is not None else failure
        except KeeperFailed as error:
            if isinstance(error, KeeperSilent) and time.monotonic() < deadline:
                failure = str(error)
                kept.signal_keepers(folder, signal.SIGCONT)
                time.sleep(RETRY_S)
                continue
            # It also holds the name of the gateway's memory.
            killed = kept.signal_keepers(folder, signal.SIGKILL)
            log.warning(
                "memory.not_taken",
                reason=str(error),
                killed=killed,
                effect="the start is cold: nothing is cached",
            )
            return None, str(error)


def settle_keeper(keeper: KeptMemory, memory: NodeMemory, not_adopted: str, *, from_keeper: bool) -> None:
    """End the keeper, because this process serves the memory now. `not_adopted` says why it is not the keeper's."""
    if keeper.keeping.memory == memory.index.cells[H_MEMORY]:
        keeper.taken()
    elif from_keeper:
        keeper.release(f"the next data plane did not adopt it: {not_adopted}")
    else:
        keeper.release("a data plane started with other memory")


def take_stored(
    manager: ServiceManager, state: StateDirectory, keeper_failure: str
) -> tuple[list[tuple[str, int, int]], str]:
    """Return the descriptors that the service manager stored (kind, number, fd), and why their memory is not adopted.
    Memory with which WARM_STARTS starts ended before they served is given up."""
    stored = manager.take()
    if all(kind in SOCKETS for kind, _, _ in stored):
        return stored, keeper_failure
    starts = state.count_start()
    if starts <= WARM_STARTS:
        return stored, ""
    reason = f"{starts - 1} starts with the memory that the service manager stored failed"
    log.error("memory.given_up", reason=reason, effect="the start is cold: nothing is cached")
    for kind, _, fd in stored:
        if kind == NAMED:
            fcntl.flock(
                fd, fcntl.LOCK_UN
            )  # the service manager has a duplicate, which would keep the name locked
        if kind not in SOCKETS:
            os.close(fd)
    return [each for each in stored if each[0] in SOCKETS], reason


class KeptCache:
    """The cache of one data plane: its record while it serves, and its memory when it ends."""

    def __init__(
        self,
        state: StateDirectory,
        node: Node,
        memory: NodeMemory,
        clock: Callable[[], float],
        keep_memory_s: float,
    ) -> None:
        self._state = state
        self._node = node
        self._memory = memory
        self._clock = clock
        self._keep_memory_s = keep_memory_s
        self._recorded = CacheRecord()

    def record(self) -> None:
        """Record how much is cached, if the amount has changed."""
        now = self._held()
        if (now.blocks, now.bytes) != (self._recorded.blocks, self._recorded.bytes):
            self._recorded = now
            self._state.record(now)

    def _held(self, *, exact: bool = False) -> CacheRecord:
        """Return how much is cached. `exact` counts the READY blocks, which reads every control word; otherwise blocks
        that are being written count, too."""
        pool = self._node.pool.stats()
        blocks = pool.blocks
        if exact:
            state = self._memory.index.control & np.uint64(STATE_MASK)
            blocks = int(np.count_nonzero((state == State.READY) | (state == State.EVICTING)))
        return CacheRecord(blocks, pool.ready_bytes, self._clock(), boot_id())

    def end(self, ending: Ending) -> bool:
        """Hand over the memory, or mark it as released. Return whether it was released."""
        held = self._held(exact=True)
        if ending is Ending.HAND_OVER or (ending is Ending.KEEP and self._hand_to_keeper(held)):
            self._state.record(held)
            return False
        self._memory.index.header[H_CLOSED] = 1  # engines stop reading it
        if not held.blocks:
            return True
        if ending is Ending.KEEP:
            held.reason = "the memory keeper could not be started when the data plane stopped"
        else:
            how = "with dataplane.keep_memory_s = 0" if not self._keep_memory_s else "and its memory released"
            held.reason = f"the data plane was stopped {how}"
            held.on_purpose = True
        self._state.record(held)
        return True

    def _hand_to_keeper(self, held: CacheRecord) -> bool:
        """Hand the memory to a keeper, unless nothing is cached. Return whether a keeper holds the memory now."""
        if not held.blocks:
            return False
        named = self._memory.named
        keep = Keep(
            VERSION,
            self._keep_memory_s,
            held.blocks,
            held.bytes,
            os.getpid(),
            int(self._memory.index.cells[H_MEMORY]),
            [] if named is None else [str(path) for path in named.paths],
        )
        files = [(kind, number, file.fd, file.nbytes) for kind, number, file in self._memory.files()]
        try:
            pid = kept.hand_over(self._state.path, keep, files)
        except KeeperFailed as error:
            log.warning("memory.not_kept", reason=str(error), effect="the next start is cold")
            return False
        log.info(
            "memory.kept",
            blocks=held.blocks,
            bytes=held.bytes,
            seconds=self._keep_memory_s,
            pid=pid,
            next="start again within this time, or release the memory with `larder down`",
        )
        return True
