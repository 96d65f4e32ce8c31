"""Check the blocks that engines report as corrupt.

The data plane does not trust a report: it verifies each reported block itself. Because verification costs the node's
time, it has a budget with a share for each engine, so that false reports slow down only the engine that sends them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dataplane.core.blocks.blocks import Block
from dataplane.core.blocks.ports import MemorySource
from dataplane.core.pool.pool import Pool
from dataplane.protocol.checksums import NONE
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST, Report
from dataplane.protocol.events import BlockCorrupted
from dataplane.protocol.layout import COLD_CHECKSUM
from dataplane.protocol.salts import shown
from dataplane.protocol.states import State

NODE_BYTES_PER_S = 256 << 20
"""Budget of all engines together. At 10 GB/s, this is a fortieth of the node's time."""
ENGINE_BYTES_PER_S = NODE_BYTES_PER_S // 8
MAX_BYTES_PER_REPORT = 64 << 20
"""Bytes after which a report reads no further block. The last block may exceed the limit, so that larger blocks can be
reported too."""
MAX_BYTES_PER_BLOCK = 128 << 20
"""Maximum size of a block that is verified, because no engine is served meanwhile. Reports of larger blocks are
refused as RATE_LIMITED."""


@dataclass(slots=True)
class ReadBudget:
    """Bytes that may be read now. One block may overdraw the budget, which must then recover first."""

    rate: int
    bytes: float
    at: float

    def left(self, now: float) -> float:
        self.bytes = min(self.rate, self.bytes + (now - self.at) * self.rate)
        self.at = now
        return self.bytes


class CorruptionReports:
    """Handle reports of corrupt blocks."""

    def __init__(self, pool: Pool, memory: MemorySource, refused: Callable[[Code, int], None], now: float) -> None:
        self._pool = pool
        self._memory = memory
        self._refused = refused
        self._node = ReadBudget(NODE_BYTES_PER_S, NODE_BYTES_PER_S, now)
        self._engines: dict[int, ReadBudget] = {}

    def report(self, client: int, spaces: dict[int, bool], message: Report, now: float) -> int:
        """Verify reported blocks, drop the corrupt ones, and return their number.

        Blocks that are not READY with the reported control word, not in one of `spaces`, or without a checksum are
        skipped. Blocks beyond the budget are counted as refused (RATE_LIMITED). Raise ProtocolError if the message is
        malformed.
        """
        corrupt: list[Block] = []
        self._check(message)
        engine_budget = self._engines.setdefault(client, ReadBudget(ENGINE_BYTES_PER_S, ENGINE_BYTES_PER_S, now))
        if engine_budget.left(now) <= 0:  # the blocks of an engine that reports too often are not even looked up
            self._refused(Code.RATE_LIMITED, len(message.descriptors) // 4)
            return 0
        reported = self._blocks(spaces, message)
        too_large = sum(block.nbytes > MAX_BYTES_PER_BLOCK for block in reported)
        if too_large:
            self._refused(Code.RATE_LIMITED, too_large)
            reported = [block for block in reported if block.nbytes <= MAX_BYTES_PER_BLOCK]
        read = 0
        for at, block in enumerate(reported):
            if read >= MAX_BYTES_PER_REPORT or min(engine_budget.left(now), self._node.left(now)) <= 0:
                self._refused(Code.RATE_LIMITED, len(reported) - at)
                break
            for budget in (engine_budget, self._node):
                budget.bytes -= block.nbytes
            read += block.nbytes
            try:
                is_intact = self.is_intact(block)
            except MemoryError:
                self._refused(Code.OUT_OF_MEMORY, len(reported) - at)
                break
            if is_intact:
                self._pool.totals.false_reports += 1
            else:
                corrupt.append(block)
        self.drop(client, corrupt, now)
        return len(corrupt)

    def forget(self, client: int) -> None:
        """Drop the budget of an engine that is gone."""
        self._engines.pop(client, None)

    @staticmethod
    def _check(message: Report) -> None:
        count, remainder = divmod(len(message.descriptors), 4)
        if remainder or not 1 <= count <= MAX_KEYS_PER_REQUEST:
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
        """Return the reported blocks that can be verified, each once."""
        descriptors = np.frombuffer(message.descriptors, np.uint32).tolist()
        controls = np.frombuffer(message.controls, np.uint64).tolist()
        blocks: dict[int, Block] = {}
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
                blocks[number] = block
        return list(blocks.values())

    def has_checksum(self, block: Block) -> bool:
        """Return whether an engine supplied a checksum with a READY block."""
        return self._expected(block) != NONE

    def _expected(self, block: Block) -> bytes:
        cold = self._pool.table.memory.cold
        return cold[block.number, COLD_CHECKSUM : COLD_CHECKSUM + 2].tobytes()

    def is_intact(self, block: Block) -> bool:
        """Return whether the bytes of a block match its checksum. Raise MemoryError if memory runs out."""
        digest = self._memory.digest(block.slot.slab.segment.number, block.slot.offset, block.nbytes)
        return digest == self._expected(block)

    def drop(self, client: int, corrupt: list[Block], now: float) -> None:
        """Drop READY blocks that were found corrupt, so that look-ups miss them.

        `client` is the engine that reported them, or 0 if the data plane found them.
        """
        if not corrupt:
            return
        pool = self._pool
        pool.totals.corrupt_blocks += len(corrupt)
        for block in corrupt:
            space = pool.spaces.model(block.space)
            pool.emit(BlockCorrupted(now, shown(block.tenant.salt), space, block.nbytes, client))
        pool.mark_dead(corrupt, "corrupt")
        pool.reap(now)
