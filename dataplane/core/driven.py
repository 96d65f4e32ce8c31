"""Reservations and leases for copies that the data plane makes on behalf of engines, held while the copy runs.

A store uses a reservation of the engine, which the engine cannot end itself. A load holds leases of the data plane. The
copier reports the end of each copy. Until then it must not pass the engine's end (`detach`, `detach_cleanly`,
`process_gone`) to the core, because those calls give bytes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dataplane.core.engines.storing import check_keys
from dataplane.core.inprocess import LeasedChain
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.layout import HOT_NBYTES, HOT_OFFSET, HOT_SPACE_SEGMENT, leading
from dataplane.protocol.spaces import Space

if TYPE_CHECKING:
    from dataplane.core.node import Node


class DrivenCore:
    """Interface of the core for copies that this process makes."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def space(self, client: int, number: int) -> Space:
        """Return a space of an engine by its number. Raise ProtocolError when the engine did not attach it."""
        if number not in self.node.engines[client].spaces:
            raise ProtocolError(Code.UNKNOWN_SPACE, f"space {number} is not attached", "space")
        return self.node.pool.spaces.by_number[number]

    def give_up(self, client: int, reservation: int, now: float) -> None:
        """Abort a reservation to which no copy writes."""
        engine = self.node.engines.get(client)
        if engine is not None:  # also one that lost its connection: only this process was writing
            self.node.pool.usage.pass_to(now)
            self.node.storing.abort(engine, reservation, now)

    def hold(self, client: int, space: int, keys: bytes, nbytes: int, now: float) -> LeasedChain:
        """Lease the leading READY blocks of a chain whose size is `nbytes`; they count as used by the engine.

        Raise ProtocolError.
        """
        words = check_keys(keys)
        memory = self.node.pool.table.memory
        numbers, rows = memory.leading_ready(words, space)
        hits = leading(rows[:, HOT_NBYTES].astype("int64") == nbytes)
        chain = LeasedChain(
            numbers[:hits].tolist(),
            (rows[:hits, HOT_SPACE_SEGMENT].astype("int64") >> 32).tolist(),
            rows[:hits, HOT_OFFSET].tolist(),
        )
        if hits:
            self.node.pool.leases.hold(chain.descriptors, self.node.pool.table.max_blocks)
            self.node.uses.read(self.node.engines[client], chain.descriptors, now)
        return chain

    def release(self, descriptors: Sequence[int]) -> None:
        """Release leases that `hold` took."""
        self.node.pool.leases.release(descriptors)
