"""What an operator does with the blocks of a node: invalidate, demote, count and move them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from dataplane.core.blocks.blocks import Block
from dataplane.core.engines.engines import Engine, OpenReservation
from dataplane.core.engines.touching import touching
from dataplane.core.operator import scopes
from dataplane.core.pool.pool import Pool
from dataplane.core.pool.sweeps import Kind, SweepStart
from dataplane.core.tenants.tenant import Tenant
from dataplane.core.tiering.invalidations import Tombstone, tombstone_of
from dataplane.core.tiering.moves import ADD_TIER, Moves
from dataplane.core.tiering.tiering import Tiering
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.scopes import CountBlocks, Scope
from dataplane.protocol.layout import HOT_KEY, pack_keys


class OperatorActions:
    """Actions of operators on one node. Acknowledge an invalidation after `Node.when_recorded`."""

    def __init__(self, pool: Pool, engines: Mapping[int, Engine]) -> None:
        self._pool = pool
        self._engines = engines
        self.tiering: Tiering | None = None
        """Tiers behind memory, or None without any."""

    def invalidate(self, scope: Scope, now: float) -> SweepStart:
        """Make the blocks of a scope unreadable from now on. Raise ProtocolError."""
        begun = self._sweep("invalidate", scope, now)
        self._invalidate_in_tiers(tombstone_of(self._pool, scope, begun.before))
        return begun

    def demote(self, scope: Scope, now: float) -> SweepStart:
        """Make the blocks of a scope the first victims of eviction. Raise ProtocolError."""
        return self._sweep("demote", scope, now)

    def _sweep(self, kind: Kind, scope: Scope, now: float) -> SweepStart:
        scopes.check_narrow(scope)
        keys = scopes.keys_of(scope)
        tenant, spaces = scopes.named(self._pool, scope)
        begun = self._pool.sweeps.start(kind, tenant, spaces, keys, self._pool.pins.permanent, now)
        if kind == "invalidate":
            self._never_publish(begun, self._open_reservations(), tenant, spaces, keys)
        return begun

    def clear(self, now: float, *, permanent: bool) -> SweepStart:
        """Make every block unreadable from now on. Skip blocks under permanent pins unless `permanent` is set."""
        excluded: Collection[Block] = () if permanent else self._pool.pins.permanent
        begun = self._pool.sweeps.start("invalidate", None, None, (), excluded, now)
        self._never_publish(begun, self._open_reservations())
        self._invalidate_in_tiers(tombstone_of(self._pool, Scope(), begun.before, excluded))
        return begun

    def clear_gateway(self, gateway: str, now: float, *, force: bool) -> SweepStart:
        """Make every block of a gateway's spaces unreadable from now on, except those under permanent pins. Without
        `force`, keep blocks that are leased or being written."""
        pool = self._pool
        excluded = list(pool.pins.permanent)
        if not force:
            leased = pool.leases.held_by_any(pool.table.space_of)
            excluded += [block for number, block in pool.table.blocks.items() if leased[number]]
        spaces = frozenset(pool.spaces.of_gateway(gateway))
        begun = pool.sweeps.start("invalidate", None, spaces, (), excluded, now)
        self._never_publish(begun, self._open_reservations() if force else (), spaces=spaces)
        self._invalidate_in_tiers(tombstone_of(pool, Scope(), begun.before, excluded).within(pool, gateway))
        return begun

    def count(self, message: CountBlocks) -> tuple[int, int]:
        """Return the number of blocks and bytes that a sweep would cover; a scope without fields covers everything.
        Raise ProtocolError."""
        kind: Kind = "invalidate" if message.kind == "clear" else message.kind
        keys = scopes.keys_of(message.scope)
        tenant, spaces = scopes.named(self._pool, message.scope)
        excluded: Collection[Block] = () if message.permanent else self._pool.pins.permanent
        numbers = self._pool.sweeps.covered(kind, tenant, spaces, keys, excluded)
        return len(numbers), self._pool.sweeps.stored_bytes(numbers)

    def moves(self, tier: str = "") -> Moves:
        """Return the moves between memory and tiers. Raise ProtocolError if the node has no tiers, for the field that
        names a `tier`, or else the number of a move."""
        if self.tiering is None:
            message = f"this node has no tiers. {ADD_TIER}"
            raise ProtocolError(Code.UNKNOWN_TIER, message, "tier" if tier else "number")
        return self.tiering.moves

    def _open_reservations(self) -> list[OpenReservation]:
        return [reservation for engine in self._engines.values() for reservation in engine.reservations.values()]

    def _invalidate_in_tiers(self, tombstone: Tombstone) -> None:
        if self.tiering is not None:
            self.tiering.catalog.invalidate(tombstone)

    def _never_publish(
        self,
        begun: SweepStart,
        reservations: Iterable[OpenReservation],
        tenant: Tenant | None = None,
        spaces: frozenset[int] | None = None,
        keys: Sequence[bytes] = (),
    ) -> None:
        """Mark open reservations in the scope of a sweep as invalid, so that their blocks are not published."""
        writing = [
            reservation
            for reservation in reservations
            if reservation.timestamp < begun.before
            and (tenant is None or reservation.tenant is tenant)
            and (spaces is None or reservation.space in spaces)
        ]
        if keys and writing:
            descendant_keys = self._pool.table.memory.hot[begun.numbers, HOT_KEY : HOT_KEY + 4]
            writing = touching(writing, np.concatenate((pack_keys(list(keys)), descendant_keys)))
        for reservation in writing:
            reservation.invalid = True
