"""The tiers of a node: the parts of this package together, as the node, the gateways and the mover call them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dataplane.core.blocks.blocks import Block
from dataplane.core.engines.engines import Engine
from dataplane.core.engines.storing import StoreService
from dataplane.core.eviction.reclaimer import Reclaimer
from dataplane.core.pool.pins import Pin
from dataplane.core.tiering.cascades import Cascades
from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.copies import Copies
from dataplane.core.tiering.drains import Drains
from dataplane.core.tiering.jobs import JobTable
from dataplane.core.tiering.loads import Loads
from dataplane.core.tiering.moves import Moves
from dataplane.core.tiering.outcomes import Outcomes
from dataplane.core.tiering.pin_loads import PinLoads
from dataplane.core.tiering.pinned_chains import PinnedChains
from dataplane.core.tiering.spills import Spills
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.events import Event
from dataplane.protocol.misses import source_of_type
from dataplane.protocol.stored_blocks import BlockName, StoredBlock


class Tiering:
    """Decisions about all tiers of a node. Only the thread of the data plane calls it."""

    def __init__(
        self,
        catalog: Catalog,
        storing: StoreService,
        reclaimer: Reclaimer,
        engine: Engine,
        emit: Callable[[Event], None],
    ) -> None:
        """`engine` is the mover's."""
        self.catalog = catalog
        self.tiers: Sequence[TierState] = catalog.tiers
        """The tiers in the order in which they are asked for a block."""
        self.table = table = JobTable()
        self.loads = Loads(catalog, table, storing, engine)
        self.copies = Copies(catalog, table, engine.client)
        self.outcomes = Outcomes(catalog, table, storing, engine)
        self.spills = Spills(catalog, self.copies)
        self.cascades = Cascades(catalog, table)
        self.drains = Drains(catalog, table)
        self.moves = Moves(catalog, table, self.loads, reclaimer, emit)
        self.pinned_chains = PinnedChains(catalog, self.copies)
        self.pinned_chains.all_changed()
        self.pin_loads = PinLoads(catalog, self.loads)
        self._pool = catalog.pool

    # ---- tiers

    def add_tier(self, tier: TierState) -> None:
        """Use another tier. Its number must differ from those of all others."""
        self.catalog.add_tier(tier)
        self.pinned_chains.all_changed()

    def remove_tier(self, tier: TierState) -> None:
        """Stop using a tier. Calls under way may still end; `Catalog.forgetting` frees what it holds."""
        self.catalog.remove_tier(tier)
        self.copies.forget(tier)

    # ---- what the pool tells

    def stored(self, blocks: Sequence[Block]) -> None:
        """Note that blocks became READY."""
        if self._pool.pins.marked:
            self.pinned_chains.stored(blocks)
        self.spills.stored(blocks)

    def used(self, block: Block) -> None:
        """Note that a block was used for the first time since it was stored."""
        self.spills.used(block)

    def removed(self, blocks: Sequence[Block], now: float) -> None:
        """Note that blocks were removed from memory: this counts as a use in the tiers that hold them."""
        for block in blocks:
            space = self.catalog.identity(block.space)
            if space is not None:
                for tier in self.tiers:
                    tier.contents.touch(BlockName(space, block.key), now)
        if self._pool.arrivals:
            self._pool.arrivals.removed(blocks)

    def is_served(self, key: bytes, space: int) -> bool | None:
        """Return whether a tier in service holds a block; None if no tier is known to hold it."""
        identity = self.catalog.identity(space)
        return None if identity is None else self.catalog.is_served(BlockName(identity, key))

    def source_of(self, key: bytes, space: int) -> str:
        """Return where a block is loaded from, of `dataplane.protocol.misses.SOURCES`: `remote` if it is not known."""
        identity = self.catalog.identity(space)
        source = None if identity is None else self.catalog.source(BlockName(identity, key))
        return "remote" if source is None else source_of_type(source.tier.spec.type)

    def share_out(self) -> None:
        """Apply the quotas of tenants to all tiers."""
        self.catalog.share_out()

    def pins_changed(self, pins: Iterable[Pin]) -> None:
        """Look up the blocks of pins that were added, replaced, removed, or have expired, in parts, and load what
        guaranteed and permanent ones lack."""
        changed = list(pins)
        self.pinned_chains.changed(changed)
        self.pin_loads.changed(changed)

    def tick(self, now: float) -> None:
        """Do the periodic work: apply lowered limits, invalidations and changed pins, and let the sources propose."""
        self.loads.detach()
        self.catalog.sweep()
        self.catalog.keep_limits(now)
        self.pinned_chains.step(now)
        self.pin_loads.step(now)
        self.spills.step(now)
        self.cascades.step(now)
        self.drains.step(now)
        self.moves.step(now)

    # ---- what the mover asks and tells

    def looked_up(
        self, tier: TierState, names: Sequence[BlockName], stored: Sequence[StoredBlock | None], now: float
    ) -> None:
        """Take the answer of a shared tier about the blocks that it was asked for."""
        ahead = [block is not None and self.outcomes.is_ahead(block, now) for block in stored]
        if any(ahead):
            tier.lose("clock", *(name for name, is_ahead in zip(names, ahead, strict=True) if is_ahead))
            stored = [None if is_ahead else block for block, is_ahead in zip(stored, ahead, strict=True)]
        self.catalog.existence.answered(tier, names, stored, now)
        self.catalog.wake()
