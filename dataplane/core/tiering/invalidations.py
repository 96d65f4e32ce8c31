"""Invalidations of tiers. A tombstone says which blocks one covers: those that were stored before it.

A tier knows a block's space by its identity alone. Blocks of spaces that no engine has attached since the start of the
process are therefore covered by an invalidation of any model: a cache may drop too many blocks, but never too few.

In a tier, an invalidation is in force at once, and carried out in slices of bounded work.

A tier may hold millions of blocks, and an invalidation may cover any of them. `start` therefore only stores the
invalidation. From then on, `is_dead` decides on single blocks, and dead blocks are not loaded. Meanwhile `step` walks
over all blocks and returns the dead ones, a bounded number in each call, for the caller to forget.

A tombstone with keys covers the blocks of a prefix and those that were stored behind it: see `Tombstone.among`. Whether
a block is behind the prefix is decided by a walk from the block towards the first block of its chain. The result is
kept for every block that the walk visits, so the walks over a whole tier visit each block once. All blocks are decided
before the first one is forgotten, because a walk needs the blocks in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from dataplane.core.blocks.blocks import Block
from dataplane.core.pool.pool import Pool
from dataplane.core.tiering.contents import TierContents
from dataplane.core.tiering.tier_order import TierEntry
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.keys import split_keys
from dataplane.protocol.stored_blocks import BlockName, StoredBlock

KEYS_PER_UNIT = 256
"""Number of keys and exempt blocks that count as one tombstone in `compacted`."""
SLICE_VISITS = 1024
"""Blocks that one step visits; a block counts again when a walk crosses it."""
SLICE_DEAD = 128
"""Number of dead blocks after which a step ends."""
MAX_STARTED = 1024
"""If all invalidations that have not begun exceed this size, those of the tenant with the most are merged into one."""
MAX_WALK = 4096
"""Maximum number of ancestors that `is_dead` visits for one block. A block with more undecided ancestors counts as dead
until it is decided."""


@dataclass(frozen=True, slots=True)
class ChainPositions:
    """Where keys are in a chain, of which a part was asked for."""

    of_key: Mapping[bytes, int]
    """Position of each known key, counted from the first one that was asked for; -1 for those before it."""
    is_whole: bool = True
    """Whether the first key of the chain is known."""


NOWHERE = ChainPositions({})


class Tombstone(msgspec.Struct, frozen=True):
    """One invalidation. Fields that are None cover everything."""

    before: int
    """Blocks with a lower sequence are covered."""
    tenant: str | None = None
    other_spaces: frozenset[bytes] | None = None
    """Spaces that are not covered."""
    spaces: frozenset[bytes] | None = None
    """The only spaces that are covered."""
    keys: frozenset[bytes] | None = None
    """Keys of a prefix. Blocks behind its last key are covered, too: see `behind`."""
    last_key: bytes = b""
    excluded: frozenset[tuple[bytes, bytes]] = frozenset()
    """Names of blocks that are not covered."""

    @property
    def size(self) -> int:
        """The size that `compacted` counts for it."""
        return 1 + (len(self.keys or ()) + len(self.excluded)) // KEYS_PER_UNIT

    def covers(self, block: StoredBlock) -> bool:
        """Return whether the block is covered, apart from the keys."""
        return (
            block.sequence < self.before
            and (self.tenant is None or block.tenant == self.tenant)
            and self.covers_space(block.name.space)
            and (not self.excluded or tuple(block.name) not in self.excluded)
        )

    def covers_space(self, space: bytes) -> bool:
        """Return whether blocks of a space may be covered."""
        return (self.other_spaces is None or space not in self.other_spaces) and (
            self.spaces is None or space in self.spaces
        )

    def covers_behind(self, block: StoredBlock, at: int, positions: ChainPositions) -> bool:
        """Return whether a block of a shared tier is covered, which has the position `at` in its chain.

        If the first key of the chain is not known, a block that may be behind the prefix counts as covered.
        """
        if not self.covers(block):
            return False
        if self.keys is None or block.name.key in self.keys or positions.of_key.get(self.last_key, at) < at:
            return True
        return not positions.is_whole

    def among(self, blocks: Iterable[StoredBlock]) -> set[BlockName]:
        """Return the names of the blocks that are covered. `blocks` are all that one tier holds.

        With keys, these are the blocks of the prefix, those that were stored behind it, and those of the same tenants
        whose parent the tier does not hold: they may have been behind it.
        """
        covered = [block for block in blocks if self.covers(block)]
        if self.keys is None:
            return {block.name for block in covered}
        children: dict[tuple[bytes, bytes], list[StoredBlock]] = {}
        present = {block.name for block in covered}
        for block in covered:
            if block.parent:
                children.setdefault((block.name.space, block.parent), []).append(block)
        prefix = [block for block in covered if block.name.key in self.keys]
        tenants = {block.tenant for block in prefix}
        dead = {block.name for block in prefix}
        waiting = [(block.name.space, self.last_key) for block in covered]
        loose = [
            parent
            for parent, blocks in children.items()
            if BlockName(*parent) not in present
            and parent[1] not in self.keys
            and any(block.tenant in tenants for block in blocks)
        ]
        stack = [*dict.fromkeys(waiting), *loose]
        while stack:
            for block in children.get(stack.pop(), ()):
                if block.name not in dead:
                    dead.add(block.name)
                    stack.append((block.name.space, block.name.key))
        return dead

    def within(self, pool: Pool, gateway: str) -> Tombstone:
        """Return the tombstone for the spaces of one gateway alone."""
        spaces = frozenset(pool.spaces.identities[number] for number in pool.spaces.of_gateway(gateway))
        return msgspec.structs.replace(self, spaces=spaces)


def tombstone_of(pool: Pool, scope: Scope, before: int, excluded: Iterable[Block] = ()) -> Tombstone:
    """Return the tombstone of an operator's scope, which is valid. `excluded` blocks are not covered."""
    identities = pool.spaces.identities
    merged: frozenset[bytes] | None = None
    spaces: frozenset[bytes] | None = None
    if scope.model is not None:
        merged = frozenset(
            identities[number] for number, space in pool.spaces.by_number.items() if space.model != scope.model
        )
    if scope.space is not None:
        try:
            spaces = frozenset({bytes.fromhex(scope.space)})
        except ValueError:  # no space has this identity
            spaces = frozenset()
    keys = split_keys(scope.keys)
    return Tombstone(
        before=before,
        tenant=scope.tenant,
        other_spaces=merged,
        spaces=spaces,
        keys=frozenset(keys) if keys else None,
        last_key=keys[-1] if keys else b"",
        excluded=frozenset((identities[block.space], block.key) for block in excluded),
    )


def compacted(tombstones: Sequence[Tombstone], most: int) -> list[Tombstone]:
    """Return tombstones that cover at least the same blocks, of a total size of at most `most`.

    The tombstones of one tenant are merged into one that covers all older blocks of this tenant, beginning with the
    tenant that has the most. Those of other tenants stay as they are, because the operators of one tenant must not be
    able to invalidate blocks of others with many requests. All tombstones are merged only if `most` tenants have one.
    """
    merged = list(tombstones)
    while sum(tombstone.size for tombstone in merged) > most:
        sizes: dict[str | None, int] = {}
        for tombstone in merged:
            sizes[tombstone.tenant] = sizes.get(tombstone.tenant, 0) + tombstone.size
        tenant = max(sizes, key=lambda salt: sizes[salt])
        if sizes[tenant] == 1:
            return [Tombstone(before=max(tombstone.before for tombstone in merged))]
        newest = max(tombstone.before for tombstone in merged if tombstone.tenant == tenant)
        merged = [tombstone for tombstone in merged if tombstone.tenant != tenant]
        merged.append(Tombstone(before=newest, tenant=tenant))
    return merged


class Verdict(IntEnum):
    """State of a block for a tombstone with keys."""

    UNKNOWN = 0
    ALIVE = 1
    DEAD = 2


class _Invalidation:
    """One tombstone in one tier, until all blocks have been visited."""

    def __init__(self, tombstone: Tombstone, contents: TierContents) -> None:
        self.tombstone = tombstone
        self._contents = contents
        self._verdicts = bytearray()
        """By the numbers of blocks; only for a tombstone with keys."""
        self._tenants = self._tenants_of_prefix()

    def _tenants_of_prefix(self) -> set[str]:
        entries, tombstone = self._contents.entries, self.tombstone
        spaces = [space for space in self._contents.spaces if tombstone.covers_space(space)]
        names = (BlockName(space, key) for space in spaces for key in tombstone.keys or ())
        candidates = (entries.get(name) for name in names)
        return {entry.stored.tenant for entry in candidates if entry is not None and tombstone.covers(entry.stored)}

    def covers(self, entry: TierEntry) -> bool:
        """Return whether the block is dead, or may be."""
        if not self.tombstone.covers(entry.stored):
            return False
        if self.tombstone.keys is None:
            return True
        path: set[int] = set()
        for _ in self._walk(entry, path):
            if len(path) >= MAX_WALK:
                return True
        return self._verdict(entry.number) is not Verdict.ALIVE

    def run(self) -> Iterator[TierEntry | None]:
        """Visit all blocks. Yield None after each visit, and each block that is dead. It may be removed at once."""
        numbered = self._contents.numbered
        if self.tombstone.keys is not None:
            for number in range(len(numbered)):
                entry = numbered[number]
                if entry is not None and self.tombstone.covers(entry.stored):
                    yield from self._walk(entry, set())
                yield None
        for number in range(len(numbered)):
            entry = numbered[number]
            if (
                entry is not None
                and self.tombstone.covers(entry.stored)
                and (self.tombstone.keys is None or self._verdict(number) is Verdict.DEAD)
            ):
                yield entry
            yield None

    def _walk(self, entry: TierEntry, path: set[int]) -> Iterator[None]:
        """Decide on a block that the tombstone covers, apart from the keys, and on its ancestors. Add the numbers of
        the blocks that are visited to `path`, and yield after each.

        Engines choose parents, so they may form a cycle. A cycle without a key of the prefix is not behind it.
        """
        tombstone, entries = self.tombstone, self._contents.entries
        assert tombstone.keys is not None
        at: TierEntry | None = entry
        verdict = Verdict.UNKNOWN
        while verdict is Verdict.UNKNOWN:
            if at is None or not tombstone.covers(at.stored):
                # The block before it is gone, or was stored again: that one may have been behind the prefix.
                verdict = Verdict.DEAD if entry.stored.tenant in self._tenants else Verdict.ALIVE
                break
            verdict = Verdict.ALIVE if at.number in path else self._verdict(at.number)
            if verdict is Verdict.UNKNOWN:
                path.add(at.number)
                entry, stored = at, at.stored
                if stored.name.key in tombstone.keys or stored.parent == tombstone.last_key:
                    verdict = Verdict.DEAD
                elif not stored.parent or stored.parent in tombstone.keys:
                    verdict = Verdict.ALIVE
                else:
                    at = entries.get(BlockName(stored.name.space, stored.parent))
            yield None
        if path:
            self._grow(max(path) + 1)
        for number in path:
            self._verdicts[number] = verdict

    def _verdict(self, number: int) -> Verdict:
        return Verdict(self._verdicts[number]) if number < len(self._verdicts) else Verdict.UNKNOWN

    def _grow(self, size: int) -> None:
        if size > len(self._verdicts):
            self._verdicts += bytes(max(size, len(self._contents.numbered)) - len(self._verdicts))


class TierInvalidations:
    """The invalidations of one tier that are under way, oldest first."""

    def __init__(self, contents: TierContents) -> None:
        self._contents = contents
        self._waiting: deque[_Invalidation] = deque()
        self._run: Iterator[TierEntry | None] | None = None
        """The walk of the oldest invalidation."""

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self, tombstone: Tombstone) -> None:
        """Put an invalidation in force. Call `step` until nothing is under way."""
        self._waiting.append(_Invalidation(tombstone, self._contents))
        begun = [self._waiting[0]] if self._run is not None else []
        waiting = list(self._waiting)[len(begun) :]
        tombstones = [invalidation.tombstone for invalidation in waiting]
        remaining = compacted(tombstones, MAX_STARTED)
        if len(remaining) < len(waiting) or remaining != tombstones:
            by_tombstone = {id(invalidation.tombstone): invalidation for invalidation in waiting}
            merged = [
                by_tombstone.get(id(tombstone)) or _Invalidation(tombstone, self._contents) for tombstone in remaining
            ]
            self._waiting = deque([*begun, *merged])

    def is_dead(self, entry: TierEntry) -> bool:
        """Return whether an invalidation under way covers a block."""
        return any(invalidation.covers(entry) for invalidation in self._waiting)

    def step(self) -> list[TierEntry]:
        """Visit the next blocks, at most SLICE_VISITS, and return those that are dead. The caller forgets them."""
        dead: list[TierEntry] = []
        visits = 0
        while self._waiting and visits < SLICE_VISITS and len(dead) < SLICE_DEAD:
            if self._run is None:
                self._run = self._waiting[0].run()
            for entry in self._run:
                if entry is not None:
                    dead.append(entry)
                else:
                    visits += 1
                if visits >= SLICE_VISITS or len(dead) >= SLICE_DEAD:
                    return dead
            self._run = None
            self._waiting.popleft()
        return dead
