"""Blocks that an engine reports as corrupt: the data plane looks for itself.

A reader is believed in nothing but where to look. Looking costs the node's time, so there is a budget for it, a share
of it for each engine: whoever lies is served less, and nobody else is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dataplane.core.blocks import Block
from dataplane.core.pool import Pool
from dataplane.core.ports import Memory
from dataplane.protocol.checksums import NONE
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST, Report
from dataplane.protocol.events import BlockCorrupt
from dataplane.protocol.layout import COLD_CHECKSUM
from dataplane.protocol.salts import shown
from dataplane.protocol.states import State

NODE_BYTES_PER_S = 256 << 20
"""At ten gigabytes a second a fortieth of the node's time."""
ENGINE_BYTES_PER_S = NODE_BYTES_PER_S // 8
MAX_BYTES_PER_REPORT = 64 << 20
"""And one block more: a block larger than this can be reported too."""
MAX_BYTES_PER_BLOCK = 128 << 20
"""Nobody is served while a block is read. Reports of larger ones are refused for their rate."""


@dataclass(slots=True)
class Budget:
    """Bytes that may be read now. It may be overdrawn by one block, and then has to recover first."""

    rate: int
    bytes: float
    at: float

    def left(self, now: float) -> float:
        self.bytes = min(self.rate, self.bytes + (now - self.at) * self.rate)
        self.at = now
        return self.bytes


class Integrity:
    """Serves reports."""

    def __init__(
        self,
        pool: Pool,
        memory: Memory,
        refused: Callable[[Code, int], None],
        now: float,
    ) -> None:
        self._pool = pool
        self._memory = memory
        self._refused = refused
        self._node = Budget(NODE_BYTES_PER_S, NODE_BYTES_PER_S, now)
        self._engines: dict[int, Budget] = {}

    def report(self, client: int, spaces: dict[int, bool], message: Report, now: float) -> int:
        """Look at reported blocks and drop the corrupt ones; returns how many. Raises ProtocolError when malformed.

        Blocks that are not READY with the control word that was seen, not of one of `spaces`, or without a checksum are
        passed over. Blocks beyond the budget are counted as refused for their rate.
        """
        corrupt: list[Block] = []
        self._check(message)
        own = self._engines.setdefault(client, Budget(ENGINE_BYTES_PER_S, ENGINE_BYTES_PER_S, now))
        if own.left(now) <= 0:  # whoever asks too often is not even read
            self._refused(Code.RATE_LIMITED, len(message.descriptors) // 4)
            return 0
        reported = self._blocks(spaces, message)
        too_large = sum(block.nbytes > MAX_BYTES_PER_BLOCK for block in reported)
        if too_large:
            self._refused(Code.RATE_LIMITED, too_large)
            reported = [block for block in reported if block.nbytes <= MAX_BYTES_PER_BLOCK]
        read = 0
        for at, block in enumerate(reported):
            if read >= MAX_BYTES_PER_REPORT or min(own.left(now), self._node.left(now)) <= 0:
                self._refused(Code.RATE_LIMITED, len(reported) - at)
                break
            for budget in (own, self._node):
                budget.bytes -= block.nbytes
            read += block.nbytes
            try:
                whole = self.whole(block)
            except MemoryError:
                self._refused(Code.OUT_OF_MEMORY, len(reported) - at)
                break
            if whole:
                self._pool.totals.false_reports += 1
            else:
                corrupt.append(block)
        self.drop(client, corrupt, now)
        return len(corrupt)

    def forget(self, client: int) -> None:
        """An engine is gone."""
        self._engines.pop(client, None)

    @staticmethod
    def _check(message: Report) -> None:
        count, rest = divmod(len(message.descriptors), 4)
        if rest or not 1 <= count <= MAX_KEYS_PER_REQUEST:
            raise ProtocolError(
                Code.MALFORMED,
                f"expected 1 to {MAX_KEYS_PER_REQUEST} u32 descriptors, got {len(message.descriptors)} bytes",
                "descriptors",
            )
        if len(message.controls) != 8 * count:
            raise ProtocolError(
                Code.MALFORMED,
                f"expected a u64 control word for each of {count} descriptors, got {len(message.controls)} bytes",
                "controls",
            )

    def _blocks(self, spaces: dict[int, bool], message: Report) -> list[Block]:
        """Reported blocks that can be judged, each once."""
        descriptors = np.frombuffer(message.descriptors, np.uint32).tolist()
        controls = np.frombuffer(message.controls, np.uint64).tolist()
        found: dict[int, Block] = {}
        for number, control in zip(descriptors, controls, strict=True):
            block = self._pool.table.blocks.get(number)
            if (
                block is not None
                and block.control == control
                and block.state is State.READY
                and block.entry is not None
                and block.space in spaces
                and self.has_checksum(block)
            ):
                found[number] = block
        return list(found.values())

    def has_checksum(self, block: Block) -> bool:
        """Whether its engine gave a checksum with a READY block."""
        return self._expected(block) != NONE

    def _expected(self, block: Block) -> bytes:
        cold = self._pool.table.memory.cold
        return cold[block.number, COLD_CHECKSUM : COLD_CHECKSUM + 2].tobytes()

    def whole(self, block: Block) -> bool:
        """Whether the bytes of a block match its checksum. Raises MemoryError."""
        digest = self._memory.digest(block.slot.slab.segment.number, block.slot.offset, block.nbytes)
        return digest == self._expected(block)

    def drop(self, client: int, corrupt: list[Block], now: float) -> None:
        """READY blocks that were found corrupt, by an engine's report or by the data plane (0), are misses now."""
        if not corrupt:
            return
        pool = self._pool
        pool.totals.corrupt_blocks += len(corrupt)
        for block in corrupt:
            space = pool.spaces.model(block.space)
            pool.emit(BlockCorrupt(now, shown(block.tenant.salt), space, block.nbytes, client))
        pool.doom(corrupt)
        pool.bury(now)
