"""What engines let the data plane copy: reserved and leased here, in their name, for as long as a copy runs.

A store is the engine's reservation, which it cannot end itself. A load holds leases of the data plane's own. Whoever
copies says when the copy is over; until then it keeps the engine's end from the core (`detach`, `goodbye`,
`process_gone`), for those give bytes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dataplane.core.inprocess import Held
from dataplane.core.storing import check_keys
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import Abort, Commit, Reserve
from dataplane.protocol.layout import HOT_NBYTES, HOT_OFFSET, HOT_SPACE_SEGMENT, is_ready, leading
from dataplane.protocol.spaces import Space

if TYPE_CHECKING:
    from dataplane.core.node import Node
    from dataplane.core.storing import Granted


class Driven:
    """The core, for copies that this process makes."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def space(self, client: int, number: int) -> Space:
        """A space of an engine. Raises ProtocolError."""
        if number not in self._node.engines[client].spaces:
            raise ProtocolError(Code.UNKNOWN_SPACE, f"space {number} is not attached", "space")
        return self._node.pool.spaces.by_number[number]

    def reserve(self, client: int, message: Reserve, now: float) -> Granted:
        """Room for the missing blocks of a chain. Raises ProtocolError."""
        return self._node.reserve(client, message, now)

    def publish(self, client: int, reservation: int, checksums: bytes, now: float) -> int:
        """All of a reservation is written; published blocks. Raises ProtocolError; then its bytes are given back."""
        return self._node.commit(client, Commit(0, reservation, b"", checksums), now)

    def give_up(self, client: int, reservation: int, now: float) -> None:
        """Nothing of a reservation is published, and nobody writes there any more."""
        if client in self._node.engines:
            self._node.abort(client, Abort(0, reservation), now)

    def hold(self, client: int, space: int, keys: bytes, nbytes: int, now: float) -> Held:
        """Lease the leading READY blocks of a chain that have so many bytes; they count as used by the engine.

        Raises ProtocolError.
        """
        words = check_keys(keys)
        memory = self._node.pool.table.memory
        numbers, control, rows = memory.find_rows(words, space)
        good = (numbers >= 0) & is_ready(control) & (rows[:, HOT_NBYTES].astype("int64") == nbytes)
        valid = memory.valid(numbers, rows)
        hits = leading(good if valid is None else good & valid)
        held = Held(
            numbers[:hits].tolist(),
            (rows[:hits, HOT_SPACE_SEGMENT].astype("int64") >> 32).tolist(),
            rows[:hits, HOT_OFFSET].tolist(),
        )
        if hits:
            self._node.pool.leases.hold(held.descriptors, self._node.pool.table.max_blocks)
            self._node.uses.read(self._node.engines[client], held.descriptors, now)
        return held

    def let_go(self, descriptors: Sequence[int]) -> None:
        """Give leases of `hold` back."""
        self._node.pool.leases.let_go(descriptors)
