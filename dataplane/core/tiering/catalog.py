"""What the tiers of a node hold: their contents, the directory for engines, invalidations, deletions and charges.

Whatever changes a tier's contents goes through the catalog, so that contents, the directory, answers of shared
tiers, pins and the usage of tenants agree.

The catalog decides nothing about copies and loads, and knows none of their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

import msgspec

from dataplane.core.packed_keys import check_keys
from dataplane.core.pool.pool import Pool
from dataplane.core.pool.removals import INVALIDATED, TIER
from dataplane.core.tiering.contents import LISTED_AT, pin_budgets, shares_in
from dataplane.core.tiering.existence import BlockListings, Existence
from dataplane.core.tiering.invalidations import Tombstone
from dataplane.core.tiering.tier_order import TierEntry
from dataplane.core.tiering.tier_state import Arrival, TierState
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.spaces import Space
from dataplane.protocol.stored_blocks import CODEC_NAMES, BlockForm, BlockName, StoredBlock
from dataplane.protocol.tier_directory import TierDirectory, space_word
from dataplane.protocol.tiers import Compress

MAX_EVICTED_AT_ONCE = 2048
"""Blocks that one call of `keep_limits` evicts, or whose guarantee it changes, for each tier."""
SHRINK_BLOCKS = 64
"""About how many blocks one step evicts to reach a smaller budget."""
RESTORED_AT_ONCE = 128
DELETED_AT_ONCE = 1024
"""Names that one call of `take_deletions` looks at."""
MAX_SPACES = 1024
"""Number of spaces that are recorded."""
MAX_LISTED_AHEAD_NS = 24 * 3600 * 10**9
"""Listed blocks whose sequence is further in the future are not counted, because the node continues with a higher
sequence than all counted blocks have."""


class Reach(NamedTuple):
    """Numbers of leading blocks of a chain."""

    ready: int
    """Blocks in memory."""
    reach: int
    """Blocks in memory, in a tier in service, or possibly in a shared tier, which was not asked yet."""


class Source(NamedTuple):
    """Where a block can be loaded from."""

    tier: TierState
    nbytes: int
    tenant: str


class SpaceRecords:
    """The newest spaces that engines have attached, also before the process started, by identity (16 bytes)."""

    def __init__(self, most: int = MAX_SPACES) -> None:
        self._most = most
        self.spaces: dict[bytes, Space] = {}
        self.models: dict[bytes, str] = {}
        """Models of the spaces, and of those of which nothing else is known."""

    def add(self, identity: bytes, space: Space) -> None:
        """Record a space that an engine has attached."""
        self.spaces.pop(identity, None)
        self.models.pop(identity, None)
        self.spaces[identity], self.models[identity] = space, space.model
        while len(self.models) > self._most:
            oldest = next(iter(self.models))
            del self.models[oldest]
            self.spaces.pop(oldest, None)


class Catalog:
    """What all tiers of a node hold."""

    def __init__(
        self,
        pool: Pool,
        directory: TierDirectory,
        known_spaces: SpaceRecords,
        record: Callable[[Tombstone], None],
        when_recorded: Callable[[Callable[[], None]], None],
        wake: Callable[[], None],
        writer: int,
    ) -> None:
        """`record` is called before an invalidation takes effect; `when_recorded` calls back when those so far are in
        the state directory, at once or later. `wake` is called when there may be something to copy, load or delete.
        `writer` is the number of this node in the blocks that it writes to shared tiers."""
        self.pool = pool
        self.directory = directory
        self.known_spaces = known_spaces
        self.wake = wake
        self.writer = writer
        self.tiers: list[TierState] = []
        """The tiers in the order in which they are asked for a block."""
        self.when_recorded = when_recorded
        self._record = record
        self._listed = BlockListings(directory)
        self.existence = Existence(self.tiers, self._listed)
        self._shared_out = False
        self._models: dict[bytes, str] = {}
        """Models of spaces, by identity, including spaces that the pool has forgotten while tiers hold their blocks."""
        self.spaces_of_model: dict[str, list[bytes]] = {}
        for space, model in known_spaces.models.items():
            self._know(space, model)

    # ---- spaces

    def identity(self, space: int) -> bytes | None:
        """Return the 16 bytes that name a space in tiers; None for a number that the pool does not know, or has
        forgotten."""
        return self.pool.spaces.identities.get(space)

    def declared(self, identity: bytes) -> Space | None:
        """Return a space that engines have attached, now or earlier; None if it is not known."""
        return self.known_spaces.spaces.get(identity) or self.pool.spaces.of_identity(identity)

    def form(self, space: int | None) -> BlockForm:
        """Return how the elements of a space's blocks are arranged in memory, as far as its engines declared it."""
        declared = None if space is None else self.pool.spaces.by_number.get(space)
        return BlockForm() if declared is None else BlockForm(declared.dtype, declared.head_size)

    def know_space(self, identity: bytes, space: Space) -> None:
        """Record a space that an engine has attached."""
        self._know(identity, space.model)
        self.known_spaces.add(identity, space)
        if len(self._models) > 2 * len(self.known_spaces.models):
            self._forget_models()

    def _forget_models(self) -> None:
        """Forget the models of spaces that neither records nor the pool nor tiers have."""
        used = self.known_spaces.models.keys() | self.pool.spaces.by_identity.keys()
        used = used.union(*(tier.contents.spaces for tier in self.tiers))
        for space in self._models.keys() - used:
            model = self._models.pop(space)
            self.spaces_of_model[model].remove(space)
            if not self.spaces_of_model[model]:
                del self.spaces_of_model[model]

    def _know(self, space: bytes, model: str) -> None:
        if space not in self._models:
            self._models[space] = model
            self.spaces_of_model.setdefault(model, []).append(space)

    # ---- tiers that are added, changed and removed

    def sort(self) -> None:
        """Put the tiers in order again, after the record of one has changed."""
        self.tiers.sort(key=lambda tier: (tier.spec.order, tier.number))

    def add_tier(self, tier: TierState) -> None:
        """Use another tier. Its number must differ from those of all others."""
        self.tiers.append(tier)
        self.sort()
        self.share_out()

    def remove_tier(self, tier: TierState) -> None:
        """Stop using a tier. Calls under way may still end; `forgetting` clears the directory."""
        tier.serves, tier.closing = False, True
        self.tiers.remove(tier)
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
                    self._remove(tier, entry.stored.name)
            yield

    def shrink(self, tier: TierState, now: float) -> bool:
        """Apply a changed budget: evict some blocks of a tier that exceeds it, or let the tier hold more.

        Return whether it evicted any; call it again then. Otherwise the tier is within its budget, or floors and pins
        hold its blocks until `keep_limits` has applied the budget to them. The tier takes new blocks in both cases.
        """
        contents, target_bytes = tier.contents, tier.spec.budget_bytes
        if contents.target_bytes != target_bytes:
            contents.target_bytes = target_bytes
            self._shared_out = False
        contents.budget_bytes = max(target_bytes, min(contents.budget_bytes, contents.used_bytes))
        excess = contents.budget_bytes - target_bytes
        if not excess:
            return False
        mean = contents.used_bytes // max(1, len(contents))
        victims = contents.victims(0, "", now, lambda entry: False, at_least=min(excess, SHRINK_BLOCKS * mean))
        if isinstance(victims, str):
            victims = contents.victims(0, "", now, lambda entry: False, at_least=1)
        if isinstance(victims, str):
            return False
        for victim in victims:
            self.evict(tier, victim)
        return True

    # ---- blocks that a tier held before it was opened

    def restoring(
        self, tier: TierState, retained: Sequence[StoredBlock], unwanted: Sequence[BlockName], now: float
    ) -> Iterator[None]:
        """Add blocks that a tier holds, oldest first, some in each step, and let it delete the unwanted ones.

        The pool continues with a higher timestamp than all of them.
        """
        if retained:
            self.pool.sweeps.continue_after(retained[-1].sequence)
        for at in range(0, len(retained), RESTORED_AT_ONCE):
            if tier.closing:
                return
            part = retained[at : at + RESTORED_AT_ONCE]
            for stored in part:
                self.add(tier, stored, tier.stored_size(stored.length), now)
            self._listed.add(tier.number, part)
            yield
        for at in range(0, len(unwanted), DELETED_AT_ONCE):
            tier.deletions.extend(unwanted[at : at + DELETED_AT_ONCE])
            yield

    def begin_listing(self, tier: TierState) -> None:
        """Begin to list what this node wrote to a shared tier before it started. Call it before the tier serves.

        A listing finds blocks in the order of their names, and charges them at once, so that usage and quotas count
        them. At the end, the blocks are sorted by age, which gives the order in which they are evicted. Until then,
        nothing is evicted: see `TierState.listed_blocks`.
        """
        tier.listed_blocks = 0

    def listed(self, tier: TierState, blocks: Iterable[StoredBlock], now: float) -> list[StoredBlock]:
        """Add the blocks of a listing that this node wrote. Return the blocks that were not known before."""
        assert tier.listed_blocks is not None
        newest = int(now * 1e9) + MAX_LISTED_AHEAD_NS
        added: list[StoredBlock] = []
        for block in blocks:
            if (
                block.writer != self.writer
                or block.sequence > newest
                or block.length > self.pool.slabs.capacity_bytes  # no block of this node is that large
                or block.name in tier.contents.entries
                or block.name in tier.forgotten
                or block.name in tier.arriving
            ):
                continue
            stored = block
            compress: Compress = "none"
            if block.encoding is not None:
                if block.encoding.codec not in CODEC_NAMES:
                    continue  # a later release wrote it
                compress = CODEC_NAMES[block.encoding.codec]
                stored = msgspec.structs.replace(block, encoding=None)
            self.add(tier, stored, tier.stored_size(block.stored_bytes), LISTED_AT, compress)
            self.existence.stored(stored.name)
            added.append(stored)
        tier.listed_blocks += len(added)
        self._listed.add(tier.number, added)
        return added

    def ending_listing(
        self, tier: TierState, newest_first: Sequence[StoredBlock], dead: Sequence[StoredBlock]
    ) -> Iterator[None]:
        """End a listing, some blocks in each step: sort the blocks that it found into the order of eviction, and delete
        the dead ones, unless they were stored again. Later, blocks that exceed the budget are evicted."""
        contents = tier.contents
        if newest_first:
            self.pool.sweeps.continue_after(newest_first[0].sequence)
        for at in range(0, len(newest_first), RESTORED_AT_ONCE):
            for stored in newest_first[at : at + RESTORED_AT_ONCE]:
                contents.put_first(stored)
            yield
        for at in range(0, len(dead), RESTORED_AT_ONCE):
            part, entries = dead[at : at + RESTORED_AT_ONCE], contents.entries
            self._drop(
                tier, [block.name for block in part if block.name in entries and entries[block.name].stored is block]
            )
            self.wake()
            yield
        tier.listed_blocks = None
        tier.forgotten.clear()
        # The mover brings the tier back within its budget, as after the budget was lowered.
        contents.budget_bytes = max(contents.budget_bytes, contents.used_bytes)

    # ---- where blocks are

    def reach(self, space: int, keys: bytes) -> Reach:
        """Return how far memory, and memory with tiers, hold a chain of packed keys without a gap."""
        words = check_keys(keys)
        ready = len(self.pool.table.memory.leading_ready(words, space)[0])
        identity = self.identity(space)
        if identity is None or ready == len(words):
            return Reach(ready, ready)
        word = space_word(identity.hex())
        end = ready + len(self.directory.leading(words[ready:], word).tiers)
        if end < len(words) and self.directory.shared() and not self.directory.is_missing(words[end:], word):
            end = len(words)
        return Reach(ready, end)

    def source(self, name: BlockName, tenant: str | None = None) -> Source | None:
        """Return where to load a block from: the first tier in service that holds it. None if none does, or if the
        block there is not of this `tenant`; None as a tenant stands for all."""
        for tier in self.tiers:
            entry = tier.entry_of(name) if tier.serves else None
            if entry is not None:
                source = Source(tier, entry.stored.length, entry.stored.tenant)
                break
        else:
            found_block = self.existence.found(name)
            if found_block is None:
                return None
            source = Source(found_block.tier, found_block.stored.length, found_block.stored.tenant)
        return source if tenant in (None, source.tenant) else None

    def is_served(self, name: BlockName) -> bool | None:
        """Return whether a tier in service holds a block that may be loaded; None if no tier is known to hold it."""
        if self.source(name) is not None:
            return True
        return False if any(tier.entry_of(name) is not None for tier in self.tiers) else None

    def stored(self, name: BlockName) -> StoredBlock | None:
        """Return a block as any tier holds it; None if none does."""
        found_block = self.existence.found(name)
        if found_block is not None:
            return found_block.stored
        entries = (tier.contents.entries.get(name) for tier in self.tiers)
        return next((entry.stored for entry in entries if entry is not None), None)

    def is_used_in_memory(self, entry: TierEntry) -> bool:
        """Return whether a block is used in memory. The tier then keeps it, because it does not see these uses."""
        space = self.pool.spaces.by_identity.get(entry.stored.name.space)
        if space is None:
            return False
        block = self.pool.table.find(pack_keys([entry.stored.name.key]), space)[0]
        return block is not None and block.hits > 0 and entry.hits == 0

    # ---- changes of contents

    def add(
        self, tier: TierState, stored: StoredBlock, charge: int, now: float, encoding: Compress = "none"
    ) -> TierEntry:
        """Add a block that a tier holds from now on, or replace the one of the same name. `list_blocks` lists it."""
        self._remove(tier, stored.name)
        entry = tier.contents.add(stored, charge, now, encoding)
        self._charge(tier, stored, charge)
        self.mark(tier, entry, now)
        return entry

    def mark(self, tier: TierState, entry: TierEntry, now: float) -> None:
        """Apply the pins of a block that was added to a tier, or whose pins have changed."""
        name = entry.stored.name
        model = self._models.get(name.space)
        if model is not None:  # otherwise no engine has attached its space
            tier.contents.pins.mark(entry, self.pool.pins.of(model, entry.stored.tenant, name.key), now)

    def _remove(self, tier: TierState, name: BlockName) -> bool:
        entry = tier.contents.remove(name)
        if entry is not None:
            self._charge(tier, entry.stored, -entry.charge)
        return entry is not None

    def _charge(self, tier: TierState, stored: StoredBlock, charge: int) -> None:
        """Charge what a tier holds to the usage of a tenant."""
        tenant = self.pool.tenants.by_salt.get(stored.tenant)
        managed = tenant is not None and tenant.managed
        self.pool.usage.charge_tier(tier.spec.name, stored.tenant, stored.name.space, charge, managed=managed)

    def list_blocks(self, tier: TierState, blocks: Iterable[StoredBlock]) -> None:
        """List blocks in the directory, except those that the tier no longer holds."""
        entries = tier.contents.entries
        present = [block for block in blocks if block.name in entries and entries[block.name].stored is block]
        self._listed.add(tier.number, present)

    def evict(self, tier: TierState, entry: TierEntry) -> None:
        """Forget a block that a tier has to delete to make room."""
        tier.contents.evicted_blocks += 1
        tier.evictions.append(entry.stored.name)
        self._drop(tier, [entry.stored.name], TIER)

    def release(self, tier: TierState, entry: TierEntry) -> None:
        """Remove a block that a tier must delete because another tier holds it."""
        self._drop(tier, [entry.stored.name])
        self.wake()

    def _drop(self, tier: TierState, names: Sequence[BlockName], cause: str = "") -> None:
        """Forget blocks that a tier has to delete. Remember the cause for blocks of spaces that engines of this node
        use."""
        for name in names if cause else ():
            space = self.pool.spaces.by_identity.get(name.space)
            if space is not None:
                self.pool.removals.note_keys((name.key,), space, cause, self.pool.usage.now)
        self.forget(tier, *names)
        tier.deletions.extend(names)

    def forget(self, tier: TierState, *names: BlockName) -> None:
        """Forget blocks that a tier no longer holds."""
        removed: list[BlockName] = []
        for name in names:
            found_block = self.existence.found(name)
            if found_block is not None and found_block.tier is tier:
                self.existence.forget(name)
            if tier.listed_blocks is not None:
                tier.forgotten.add(name)
            if self._remove(tier, name):
                removed.append(name)
        self._listed.remove(tier.number, removed)

    # ---- copies that arrive

    def admit(
        self,
        tier: TierState,
        stored: StoredBlock,
        now: float,
        excluded: Callable[[TierEntry], bool],
        *,
        since: float = inf,
    ) -> int | None:
        """Reserve room for a block that is to be copied to a tier, and return its charge; None if it is refused. Blocks
        that were stored or used at or after the time `since` are not evicted for it. `arrived` must follow."""
        charge, salt, name = tier.stored_size(stored.length), stored.tenant, stored.name
        victims = tier.contents.victims(charge, salt, now, excluded)
        if isinstance(victims, str):
            tier.refuse(victims, name)
            return None
        if victims and tier.listed_blocks is not None:
            tier.refuse("listing", name)
            return None
        if any(victim.used_at >= since for victim in victims):
            tier.refuse("budget", name)
            return None
        for victim in victims:
            self.evict(tier, victim)
        self.take(tier, stored, charge)
        return charge

    def take(self, tier: TierState, stored: StoredBlock, charge: int) -> None:
        """Take room for a block that is to be copied to a tier, which has the room. `arrived` must follow."""
        tier.contents.take(charge, stored.tenant)
        tier.spilling_bytes += charge
        tier.arriving[stored.name] = Arrival(stored, charge)

    def arrived(self, tier: TierState, name: BlockName) -> bool:
        """Release the room of a block whose copy has ended. Return whether an invalidation covers the block."""
        arrival = tier.arriving.pop(name)
        tier.contents.take(-arrival.charge, arrival.stored.tenant)
        tier.spilling_bytes -= arrival.charge
        return arrival.dead

    # ---- deletions and invalidations

    def take_deletions(self, tier: TierState) -> list[BlockName]:
        """Return the next names that the tier must delete; `deleted` must follow. A block that is being copied to the
        tier again is deleted if the copy fails."""
        oldest = [tier.deletions.popleft() for _ in range(min(DELETED_AT_ONCE, len(tier.deletions)))]
        waiting = [name for name in oldest if name not in tier.contents.entries]
        tier.deletions.extend([name for name in waiting if name in tier.arriving])
        names = [name for name in waiting if name not in tier.arriving]
        tier.deleting = frozenset(names)
        return names

    def deleted(self, tier: TierState, not_deleted: Sequence[BlockName]) -> None:
        """Take the end of the deletion of what `take_deletions` returned. The tier could not delete `not_deleted`."""
        tier.deleting = frozenset()
        tier.deletions.extend(not_deleted)
        self.wake()

    def invalidate(self, tombstone: Tombstone) -> None:
        """Put an invalidation in force: blocks that it covers are not loaded any more. `sweep` forgets them in all
        tiers and deletes them there, in slices.

        A block that is being copied to a tier now is deleted when that ends.
        """
        self._record(tombstone)
        for tier in self.tiers:
            tier.invalidations.start(tombstone)
            # Whether a block lies behind the keys of the tombstone is not known yet.
            for arrival in tier.arriving.values():
                arrival.dead |= tombstone.covers(arrival.stored)
        self.wake()

    def sweep(self) -> bool:
        """Carry out the next slice of invalidations in each tier. Return whether there is more to do."""
        for tier in self.tiers:
            names = [entry.stored.name for entry in tier.invalidations.step()] if tier.invalidations else []
            self._drop(tier, names, INVALIDATED)
        return any(tier.invalidations for tier in self.tiers)

    # ---- quotas

    def share_out(self) -> None:
        """Apply the quotas of tenants to all tiers. Call it again when a tier is added or its budget changes. Blocks
        above a lowered limit are evicted by `keep_limits`."""
        self._shared_out = True
        tenants = self.pool.tenants.managed()
        for tier in self.tiers:
            contents = tier.contents
            shares = shares_in(tier.spec.name, tenants)
            contents.set_shares(shares)
            contents.pins.set_budgets(
                int(contents.target_bytes * self.pool.pin_budget_ratio), pin_budgets(tenants, shares), contents.tenants
            )
        self.wake()

    def keep_limits(self, now: float) -> None:
        """Apply lowered limits and changed budgets, some blocks at a time."""
        if not self._shared_out:
            self.share_out()
        for tier in self.tiers:
            tier.contents.grow()
            tier.contents.pins.step(now, MAX_EVICTED_AT_ONCE)
            over_limits = tier.contents.beyond_limits(now, MAX_EVICTED_AT_ONCE) if tier.listed_blocks is None else ()
            for entry in over_limits:
                self.evict(tier, entry)
            if over_limits:
                self.wake()
