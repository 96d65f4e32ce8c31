"""The tiers of a node and their effect on the pool.

The mover (`dataplane.tiering.mover`) asks for work with `spills.next_batch` and `loads.next_batch`, does it on threads,
and reports each outcome. In between, a block that is copied to a tier is leased by the data plane, and memory that is
loaded into is a reservation of the mover's own engine. A restart therefore needs no special case: leases of the data
plane end with its process, and reservations of a process that is gone are released.

Spills and loads are bounded in bytes for each tier. A tier that hangs blocks at most that much memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dataplane.core.blocks.blocks import Block
from dataplane.core.packed_keys import check_keys
from dataplane.core.pool.pins import Pin
from dataplane.core.tiering.cascades import Cascades
from dataplane.core.tiering.contents import TierEntry, pin_budgets, shares_in
from dataplane.core.tiering.drains import Drains
from dataplane.core.tiering.existence import Existence, FoundBlock
from dataplane.core.tiering.invalidations import Tombstone
from dataplane.core.tiering.listings import Listings
from dataplane.core.tiering.loads import Loads, PlannedLoad
from dataplane.core.tiering.moves import Moves
from dataplane.core.tiering.pin_loads import PinLoads
from dataplane.core.tiering.pinned_chains import PinnedChains
from dataplane.core.tiering.spills import Spills
from dataplane.core.tiering.tier_state import TierState
from dataplane.core.tiering.transfers import TierTransfers
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.spaces import Space
from dataplane.protocol.stored_blocks import BlockForm, BlockName, Outcome, StoredBlock
from dataplane.protocol.tier_directory import TierDirectory, space_word

if TYPE_CHECKING:
    from dataplane.core.node import Node

MAX_EVICTED_AT_ONCE = 2048
"""Blocks that one call of `tick` evicts, or whose guarantee it changes, for each tier."""
SHRINK_BLOCKS = 64
"""About how many blocks one step evicts to reach a smaller budget."""
RESTORED_AT_ONCE = 128
MAX_AHEAD_S = 60.0
"""A block of a shared tier is not loaded if its recorded time is further in the future than this, because invalidations
would not cover it."""
DELETED_AT_ONCE = 1024
"""Names that one call of `take_deletions` looks at."""


class Reach(NamedTuple):
    """Numbers of leading blocks of a chain."""

    ready: int
    """Blocks in memory."""
    reach: int
    """Blocks in memory, in a tier in service, or possibly in a shared tier, which was not asked yet."""


class Tiering:
    """Decisions about all tiers of a node. Only the thread of the data plane calls it."""

    def __init__(self, node: Node, client: int, directory: TierDirectory, tiers: Sequence[TierState]) -> None:
        """`client` is the mover's engine; the number of a tier is its bit in the directory."""
        self._node = node
        self.pool = self._pool = node.pool
        self.client = client
        self.directory = directory
        self.tiers = list(tiers)
        """The tiers in the order in which they are asked for a block."""
        self.sort()
        self.existence = Existence(self.tiers, self._found, self._missing)
        self.loads = Loads(node, client, self.tiers, self)
        self.on_work: Callable[[], None] = lambda: None
        """Called when there may be something to spill or to load."""
        self._identities: dict[int, bytes] = {}
        self.on_tombstone: Callable[[Tombstone], None] = lambda tombstone: None
        """Called before an invalidation takes effect, to record it."""
        self.spills = Spills(node.pool, self)
        self.transfers = TierTransfers(self)
        self.cascades = Cascades(self)
        self.drains = Drains(self)
        self.moves = Moves(node, self)
        self.pinned_chains = PinnedChains(self)
        self.pinned_chains.changed(self._pool.pins.by_name.values())
        self.pin_loads = PinLoads(self)
        self._shared_out = False
        self.known_spaces: Mapping[bytes, Space] = {}
        """Spaces that engines have attached, also before the process started, by identity."""
        self.writer = 0
        """Number of this node in the blocks that it writes to shared tiers (`writer_number`)."""
        self.listings = Listings(self)
        for tier in tiers:
            self._charge_usage(tier)

    # ---- tiers that are added, changed and removed

    def sort(self) -> None:
        """Put the tiers in order again, after the record of one has changed."""
        self.tiers.sort(key=lambda tier: (tier.spec.order, tier.number))

    def add_tier(self, tier: TierState) -> None:
        """Use another tier. Its number must differ from those of all others."""
        self._charge_usage(tier)
        self.tiers.append(tier)
        self.sort()
        self.share_out()
        self.pinned_chains.changed(pin for pin in self._pool.pins.by_name.values() if not pin.expired)

    def _charge_usage(self, tier: TierState) -> None:
        """Charge what the tier holds to the usage of tenants."""
        usage, tenants, name = self._pool.usage, self._pool.tenants, tier.spec.name

        def charged(stored: StoredBlock, charge: int) -> None:
            tenant = tenants.by_salt.get(stored.tenant)
            managed = tenant is not None and tenant.managed
            usage.charge_tier(name, stored.tenant, stored.name.space, charge, managed=managed)

        tier.contents.charged = charged

    def remove_tier(self, tier: TierState) -> None:
        """Stop using a tier. Calls under way may still end; the caller clears the directory."""
        tier.serves, tier.closing = False, True
        self.tiers.remove(tier)
        tier.clear_waiting()
        self.existence.leave(tier)

    def forgetting(self, tier: TierState) -> Iterator[None]:
        """Clear the directory of a tier that was removed, and free its entries, some in each step."""
        part = 0
        while self.directory.clear_part(tier.number, part):
            part += 1
            yield
        numbered = tier.contents.numbered
        for at in range(0, len(numbered), RESTORED_AT_ONCE):
            for entry in numbered[at : at + RESTORED_AT_ONCE]:
                if entry is not None:
                    tier.contents.remove(entry.stored.name)
            yield

    def shrink(self, tier: TierState, now: float) -> None:
        """Apply a changed budget: evict some blocks of a tier that exceeds it, or let the tier hold more."""
        contents, target_bytes = tier.contents, tier.spec.budget_bytes
        self._shared_out = self._shared_out and contents.budget_bytes == target_bytes  # floors depend on the budget
        if contents.budget_bytes <= target_bytes:
            contents.budget_bytes = target_bytes
            return
        mean = contents.used_bytes // max(1, len(contents))
        contents.budget_bytes = max(
            target_bytes, min(contents.budget_bytes, contents.used_bytes) - SHRINK_BLOCKS * mean
        )
        victims = contents.victims(0, "", now, lambda entry: False)
        for victim in () if isinstance(victims, str) else victims:
            self.evict(tier, victim)

    # ---- contents of a tier that is opened

    def restoring(self, tier: TierState, retained: Sequence[StoredBlock], now: float) -> Iterator[None]:
        """Add blocks that a tier holds, oldest first, some in each step.

        The pool continues with a higher timestamp than all of them.
        """
        if retained:
            self._pool.sweeps.continue_after(retained[-1].sequence)
        for at in range(0, len(retained), RESTORED_AT_ONCE):
            part = retained[at : at + RESTORED_AT_ONCE]
            for stored in part:
                entry = tier.contents.add(stored, tier.stored_size(stored.length), now)
                self.pinned_chains.mark(tier, entry, now)
            self.list_blocks(tier, part)
            yield

    def reach(self, space: int, keys: bytes) -> Reach:
        """Return how far memory, and memory with tiers, hold a chain of packed keys without a gap."""
        words = check_keys(keys)
        ready = len(self._pool.table.memory.leading_ready(words, space)[0])
        identity = self.identity(space)
        if identity is None or ready == len(words):
            return Reach(ready, ready)
        word = space_word(identity.hex())
        end = ready + len(self.directory.leading(words[ready:], word).tiers)
        if end < len(words) and self.directory.shared() and not self.directory.is_missing(words[end:], word):
            end = len(words)
        return Reach(ready, end)

    # ---- what to spill

    def identity(self, space: int) -> bytes | None:
        """Return the 16 bytes that name a space in tiers; None for an unknown number."""
        known = self._identities.get(space)
        if known is None:
            declared = self._pool.spaces.by_number.get(space)
            if declared is None:
                return None
            known = self._identities[space] = bytes.fromhex(declared.identity())
        return known

    def form(self, space: int | None) -> BlockForm:
        """Return how the elements of a space's blocks are arranged in memory, as far as its engines declared it."""
        declared = None if space is None else self._pool.spaces.by_number.get(space)
        return BlockForm() if declared is None else BlockForm(declared.dtype, declared.head_size)

    def stored(self, blocks: Sequence[Block]) -> None:
        """Note that blocks became READY."""
        if self._pool.pins.marked:
            self.spills.first(blocks)
        self.spills.wait(blocks, "commit")

    def used(self, block: Block) -> None:
        """Note that a block was used for the first time since it was stored."""
        self.spills.wait((block,), "second_touch")

    def removed(self, blocks: Sequence[Block], now: float) -> None:
        """Note that blocks were removed from memory: this counts as a use in the tiers that hold them."""
        for block in blocks:
            space = self.identity(block.space)
            if space is not None:
                for tier in self.tiers:
                    tier.contents.touch(BlockName(space, block.key), now)
        if self._pool.arrivals:
            self._pool.arrivals.removed(blocks)

    def space_numbers(self) -> dict[bytes, int]:
        """Return the numbers of all spaces by their names in tiers."""
        for number in self._pool.spaces.by_number:
            self.identity(number)
        return {space: number for number, space in self._identities.items()}

    def attach(self, space: bytes) -> int | None:
        """Attach the mover to a space that no engine has attached now, so that its blocks can be loaded into memory.
        Return its number; None if the space is not known, or contradicts one that is attached."""
        known = self.known_spaces.get(space)
        if known is None:
            return None
        try:
            return self._node.attach_space(self.client, known)
        except ProtocolError:
            return None

    # ---- quotas and pins

    def share_out(self) -> None:
        """Apply the quotas of tenants to all tiers. Call it again when a tier is added or its budget changes. Blocks
        above a lowered limit are evicted by `tick`."""
        self._shared_out = True
        tenants = self._pool.tenants.managed()
        for tier in self.tiers:
            contents = tier.contents
            shares = shares_in(tier.spec.name, tenants)
            contents.set_shares(shares)
            contents.pins.set_budgets(
                int(contents.budget_bytes * self._pool.pin_budget_ratio), pin_budgets(tenants, shares), contents.tenants
            )
        self.on_work()

    def pins_changed(self, pins: Iterable[Pin]) -> None:
        """Look up the blocks of pins that were added, replaced, removed, or have expired, in parts, and load what
        guaranteed and permanent ones lack."""
        changed = list(pins)
        self.pinned_chains.changed(changed)
        self.pin_loads.changed(changed)

    def tick(self, now: float) -> None:
        """Do the periodic work: apply lowered limits, invalidations and changed pins, and choose blocks that are soon
        evicted."""
        self.sweep()
        if not self._shared_out:
            self.share_out()
        for tier in self.tiers:
            tier.contents.grow()
            tier.contents.pins.step(now, MAX_EVICTED_AT_ONCE)
            listed = tier.listed_blocks is None
            beyond = tier.contents.beyond_limits(now, MAX_EVICTED_AT_ONCE) if listed else ()
            for entry in beyond:
                self.evict(tier, entry)
            if beyond:
                self.on_work()
            if tier.serves and tier.missed_pins:
                tier.missed_pins = False
                self.pinned_chains.changed(pin for pin in self._pool.pins.by_name.values() if not pin.expired)
        self.pinned_chains.step(now)
        self.pin_loads.step(now)
        self.spills.look_ahead(now)
        self.cascades.step(now)
        self.drains.step(now)
        self.moves.step(now)

    # ---- evictions and invalidations

    def evict(self, tier: TierState, entry: TierEntry) -> None:
        """Forget a block that a tier has to delete."""
        self.forget(tier, entry.stored.name)
        self.cascades.evicted(tier, entry)
        tier.contents.evicted_blocks += 1
        tier.contents.evicted_bytes += entry.charge
        tier.deletions.add([entry.stored.name])

    def release(self, tier: TierState, entry: TierEntry) -> None:
        """Remove a block that a tier must delete because another tier holds it."""
        self.forget(tier, entry.stored.name)
        tier.deletions.add([entry.stored.name])
        self.on_work()

    def forget(self, tier: TierState, name: BlockName) -> None:
        """Forget a block that a tier no longer holds."""
        self._forget_all(tier, (name,))

    def forget_listed(self, tier: TierState, blocks: Sequence[StoredBlock]) -> None:
        """Remove blocks that a listing found, and delete them in the tier, unless they were stored again meanwhile."""
        entries = tier.contents.entries
        names = [block.name for block in blocks if block.name in entries and entries[block.name].stored is block]
        self._forget_all(tier, names)
        tier.deletions.add(names)
        self.on_work()

    def _forget_all(self, tier: TierState, names: Sequence[BlockName]) -> None:
        """Forget blocks that a tier no longer holds."""
        by_space: dict[bytes, list[bytes]] = {}
        for name in names:
            found = self.existence.found(name)
            if found is not None and found.tier is tier:
                self.existence.forget(name)
            if tier.listed_blocks is not None:
                tier.forgotten.add(name)
            if tier.contents.remove(name) is not None:
                by_space.setdefault(name.space, []).append(name.key)
        for space, keys in by_space.items():
            self.directory.remove(pack_keys(keys), space_word(space.hex()), tier.number)

    def _found(self, found: FoundBlock, listed: bool) -> None:
        """Add a block that another node wrote to the directory, or remove it."""
        if listed:
            self.list_blocks(found.tier, [found.stored])
        elif found.stored.name not in found.tier.contents.entries:
            name = found.stored.name
            self.directory.remove(pack_keys([name.key]), space_word(name.space.hex()), found.tier.number)

    def _missing(self, name: BlockName, missing: bool) -> None:
        self.directory.note_missing(name.key, space_word(name.space.hex()), missing=missing)

    def is_dead(self, tier: TierState, block: StoredBlock, before: Sequence[bytes], *, whole: bool) -> bool:
        """Return whether an invalidation covers a block of a shared tier; see `Tombstone.covers_behind`."""
        return any(each.covers_behind(block, before, whole=whole) for each in tier.tombstones())

    def list_blocks(self, tier: TierState, blocks: Iterable[StoredBlock]) -> None:
        """List blocks in the directory."""
        by_space: dict[bytes, list[StoredBlock]] = {}
        for stored in blocks:
            by_space.setdefault(stored.name.space, []).append(stored)
        for space, each in by_space.items():
            words = pack_keys([stored.name.key for stored in each])
            sizes = np.array([stored.length for stored in each], np.uint64)
            self.directory.add(words, space_word(space.hex()), tier.number, sizes)

    def take_deletions(self, tier: TierState) -> list[BlockName]:
        """Return the next names that the tier must delete; `deleted` must follow. A block that is being copied to the
        tier again is deleted if the copy fails."""
        waiting = [name for name in tier.deletions.take(DELETED_AT_ONCE) if name not in tier.contents.entries]
        under_way = [name for name in waiting if self.spills.is_under_way(tier, name)]
        tier.deletions.add(under_way)
        names = [name for name in waiting if not self.spills.is_under_way(tier, name)] if under_way else waiting
        tier.deleting = frozenset(names)
        return names

    def deleted(self, tier: TierState, left: Sequence[BlockName]) -> None:
        """Take the end of the deletion of what `take_deletions` returned. The tier could not delete `left`."""
        tier.deleting = frozenset()
        tier.deletions.add(left)
        self.on_work()

    def delete_later(self, tier: TierState, names: Sequence[BlockName]) -> None:
        """Add names to delete, such as those that the tier could not delete. The sequence must not change later."""
        tier.deletions.add(names)

    def deletions(self, tier: TierState) -> int:
        """Return the number of names that the tier must still delete, now or when a copy ends. It is not 0 before all
        invalidations have been carried out."""
        return len(tier.deletions) + len(tier.invalidations) + self.spills.dead(tier)

    def invalidate(self, tombstone: Tombstone) -> None:
        """Put an invalidation in force: blocks that it covers are not loaded any more. `sweep` forgets them in all
        tiers and deletes them there, in slices.

        A block that is being copied to a tier now is deleted when that ends.
        """
        self.on_tombstone(tombstone)
        for tier in self.tiers:
            self.invalidate_in(tier, tombstone)
        self.spills.invalidated(tombstone)
        self.on_work()

    def invalidate_in(self, tier: TierState, tombstone: Tombstone) -> None:
        """Put an invalidation in force in one tier."""
        tier.invalidations.start(tombstone)

    def sweep(self) -> bool:
        """Carry out the next slice of invalidations in each tier. Return whether there is more to do."""
        for tier in self.tiers:
            if not tier.invalidations:
                continue
            names = [entry.stored.name for entry in tier.invalidations.step()]
            self._forget_all(tier, names)
            tier.deletions.add(names)
        return any(tier.invalidations for tier in self.tiers)

    # ---- loads

    def looked_up(
        self, tier: TierState, names: Sequence[BlockName], stored: Sequence[StoredBlock | None], now: float
    ) -> None:
        """Take the answer of a shared tier about the blocks that it was asked for."""
        ahead = [block is not None and self._is_ahead(block, now) for block in stored]
        if any(ahead):
            tier.lose("clock", *(name for name, each in zip(names, ahead, strict=True) if each))
            stored = [None if each else block for block, each in zip(stored, ahead, strict=True)]
        self.existence.answered(tier, names, stored, now)
        self.loads.answered()
        self.on_work()

    def _is_ahead(self, block: StoredBlock, now: float) -> bool:
        """Return whether the sequence of a block is later than any node can have assigned."""
        return block.sequence > self._pool.sweeps.timestamp(now) + int(MAX_AHEAD_S * 1e9)

    def step(self, now: float) -> None:
        """Forget answers that are too old, and continue requests that no longer wait for an answer."""
        self.existence.step(now)
        self.loads.answered()

    def load_cancelled(self, load: PlannedLoad, now: float) -> None:
        """Release the memory of one block of a load that was cancelled before it began."""
        load.tier.loading_bytes -= load.nbytes
        self.loads.ended(load, b"", now)

    def loaded(
        self, load: PlannedLoad, outcome: Outcome, checksum: bytes, now: float, block: StoredBlock | None = None
    ) -> None:
        """Take the outcome of one block of a load, and the block as the tier describes it."""
        tier = load.tier
        tier.loading_bytes -= load.nbytes
        if tier.shared and block is not None:
            wrong = block.tenant != load.tenant
            ahead = self._is_ahead(block, now)
            if wrong or ahead or self.is_dead(tier, block, load.before, whole=load.whole):
                self.loads.ended(load, b"", now)
                self.existence.forget(load.name)
                tier.lose("clock" if ahead else "invalidated", load.name)
                return
        if outcome is Outcome.OK:
            tier.counters.loaded_blocks += 1
            tier.counters.loaded_bytes += load.nbytes
            tier.contents.touch(load.name, now)
            self.existence.used(load.name, now)
        else:
            tier.lose(outcome.value, load.name)
            if outcome in (Outcome.MISSING, Outcome.CORRUPT):
                self.forget(tier, load.name)
        self.loads.ended(load, checksum if outcome is Outcome.OK else b"", now)
