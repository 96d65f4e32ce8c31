"""Tombstones: which blocks of tiers an invalidation covers. It covers those that were stored before it.

A tier knows a block's space by its identity alone. Blocks of spaces that no engine has attached since the start of the
process are therefore covered by an invalidation of any model: a cache may drop too many blocks, but never too few.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from dataplane.core.blocks.blocks import Block
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.keys import KEY_BYTES
from dataplane.tiers.tier import BlockName, StoredBlock

if TYPE_CHECKING:
    from dataplane.core.pool.pool import Pool


KEYS_PER_UNIT = 256
"""Number of keys and exempt blocks that count as one tombstone in `compacted`."""


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

    def covers_behind(self, block: StoredBlock, before: Sequence[bytes], *, whole: bool) -> bool:
        """Return whether a block of a shared tier is covered.

        `before` are the keys that precede it in its chain, and `whole` whether they begin with its first one. Where
        they do not, a block that may be behind the prefix counts as covered.
        """
        if not self.covers(block):
            return False
        if self.keys is None or block.name.key in self.keys or self.last_key in before:
            return True
        return not whole

    def among(self, blocks: Iterable[StoredBlock]) -> set[BlockName]:
        """Return the names of the blocks that are covered. `blocks` are all that one tier holds.

        With keys, these are the blocks of the prefix, those that were stored behind it, and those of the same tenants
        whose parent the tier does not hold: they may have been behind it.
        """
        mine = [block for block in blocks if self.covers(block)]
        if self.keys is None:
            return {block.name for block in mine}
        children: dict[tuple[bytes, bytes], list[StoredBlock]] = {}
        present = {block.name for block in mine}
        for block in mine:
            if block.parent:
                children.setdefault((block.name.space, block.parent), []).append(block)
        prefix = [block for block in mine if block.name.key in self.keys]
        tenants = {block.tenant for block in prefix}
        found = {block.name for block in prefix}
        waiting = [(block.name.space, self.last_key) for block in mine]
        loose = [
            parent
            for parent, behind in children.items()
            if BlockName(*parent) not in present
            and parent[1] not in self.keys
            and any(block.tenant in tenants for block in behind)
        ]
        stack = [*dict.fromkeys(waiting), *loose]
        while stack:
            for block in children.get(stack.pop(), ()):
                if block.name not in found:
                    found.add(block.name)
                    stack.append((block.name.space, block.name.key))
        return found

    def within(self, pool: Pool, gateway: str) -> Tombstone:
        """Return the tombstone for the spaces of one gateway alone."""
        spaces = frozenset(
            bytes.fromhex(pool.spaces.by_number[number].identity()) for number in pool.spaces.of_gateway(gateway)
        )
        return msgspec.structs.replace(self, spaces=spaces)


def tombstone_of(pool: Pool, scope: Scope, before: int, excluded: Iterable[Block] = ()) -> Tombstone:
    """Return the tombstone of an operator's scope, which is valid. `excluded` blocks are not covered."""
    known = {number: bytes.fromhex(space.identity()) for number, space in pool.spaces.by_number.items()}
    merged: frozenset[bytes] | None = None
    spaces: frozenset[bytes] | None = None
    if scope.model is not None:
        merged = frozenset(
            known[number] for number, space in pool.spaces.by_number.items() if space.model != scope.model
        )
    if scope.space is not None:
        try:
            spaces = frozenset({bytes.fromhex(scope.space)})
        except ValueError:  # no space has this identity
            spaces = frozenset()
    keys = [scope.keys[at : at + KEY_BYTES] for at in range(0, len(scope.keys), KEY_BYTES)]
    return Tombstone(
        before=before,
        tenant=scope.tenant,
        other_spaces=merged,
        spaces=spaces,
        keys=frozenset(keys) if keys else None,
        last_key=keys[-1] if keys else b"",
        excluded=frozenset((known[block.space], block.key) for block in excluded),
    )


def compacted(tombstones: Sequence[Tombstone], most: int) -> list[Tombstone]:
    """Return tombstones that cover at least the same blocks, of a total size of at most `most`.

    The tombstones of one tenant are merged into one that covers all older blocks of this tenant, beginning with the
    tenant that has the most. Those of other tenants stay as they are, because the operators of one tenant must not be
    able to invalidate blocks of others with many requests. All tombstones are merged only if `most` tenants have one.
    """
    merged = list(tombstones)
    while sum(each.size for each in merged) > most:
        sizes: dict[str | None, int] = {}
        for each in merged:
            sizes[each.tenant] = sizes.get(each.tenant, 0) + each.size
        tenant = max(sizes, key=lambda salt: sizes[salt])
        if sizes[tenant] == 1:
            return [Tombstone(before=max(each.before for each in merged))]
        newest = max(each.before for each in merged if each.tenant == tenant)
        merged = [each for each in merged if each.tenant != tenant]
        merged.append(Tombstone(before=newest, tenant=tenant))
    return merged
