"""The blocks of all tiers, or of one tier, that a scope covers, as parts of chains in the order in which they can be
loaded.

A tier may hold millions of blocks. The selection copies their names at the start, and checks some of them in each step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dataplane.core.operator import scopes
from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.keys import split_keys
from dataplane.protocol.stored_blocks import BlockName, StoredBlock

MAX_STEP_BLOCKS = 4096
MAX_PART_BLOCKS = 256
"""Maximum number of blocks in one request for loads."""


@dataclass(slots=True)
class ChainPart:
    """Consecutive blocks of one chain."""

    keys: list[bytes]
    """Keys to ask for. They begin with the parent of the first block, if it has one."""
    names: list[BlockName]
    """Blocks of the part."""
    sizes: dict[BlockName, int]
    """Bytes of the blocks that tiers are known to hold."""
    space: int = 0
    """Number of its space when its blocks were asked for."""
    missing: list[BlockName] = field(default_factory=list)
    """Blocks that were not in memory when they were asked for."""


class ChainSelection:
    """Selects the blocks of a scope in all tiers, or in one. Call `step` until it returns False."""

    def __init__(self, catalog: Catalog, scope: Scope, source: TierState | None = None) -> None:
        """With a `source`, the blocks of this tier are selected; those of spaces that no engine has attached, too,
        unless the scope names a model."""
        self.blocks = self.bytes = 0
        """Blocks in the scope that tiers are known to hold."""
        self.unreachable = 0
        """Those of them that cannot be loaded, because no engine has attached their space."""
        self.parts: deque[ChainPart] = deque()
        """Parts of chains; those of a chain in chain order."""
        self._catalog, self._scope, self._source = catalog, scope, source
        in_scope = scopes.spaces_of(catalog.pool, scope.model, scope.space)
        self._attached = catalog.pool.spaces.by_identity
        self._spaces = {space for space, number in self._attached.items() if in_scope is None or number in in_scope}
        self._stored: dict[BlockName, StoredBlock] = {}
        self._children: dict[tuple[bytes, bytes], list[BlockName]] = {}
        self._selected: set[BlockName] = set()
        """Names that are in a part. Engines choose parents, so they may form cycles."""
        self._looked_at = 0
        self._work = self._all()

    def step(self) -> bool:
        """Look at the next blocks, and return whether more are left."""
        return next(self._work, None) is not None

    def _all(self) -> Iterator[bool]:
        yield from self._scan()
        keys = self._scope.keys
        if keys:
            yield from self._behind(split_keys(keys))
        else:
            for name, stored in self._stored.items():
                if BlockName(name.space, stored.parent) not in self._stored:
                    yield from self._descend(name)
                elif self._is_long(1):
                    yield True
            for name in self._stored if len(self._selected) < len(self._stored) else ():  # those of cycles
                if name not in self._selected:
                    yield from self._descend(name)
                elif self._is_long(1):
                    yield True

    def _scan(self) -> Iterator[bool]:
        """Find the blocks of the scope's tenant and spaces."""
        scope = self._scope
        for tier in list(self._catalog.tiers) if self._source is None else [self._source]:
            names = list(tier.contents.entries)
            for at in range(0, len(names), MAX_STEP_BLOCKS):
                for name in names[at : at + MAX_STEP_BLOCKS]:
                    entry = tier.contents.entries.get(name)
                    if (
                        entry is None
                        or name in self._stored
                        or (scope.tenant is not None and entry.stored.tenant != scope.tenant)
                    ):
                        continue
                    if name.space not in self._spaces and not self._selects(name.space):
                        self._count_unreachable(name)
                        continue
                    self._stored[name] = entry.stored
                    self._children.setdefault((name.space, entry.stored.parent), []).append(name)
                yield True

    def _selects(self, space: bytes) -> bool:
        """Add a space that is not attached, if its blocks are selected all the same: for memory, one that engines
        attached earlier."""
        scope = self._scope
        if self._source is None:
            declared = self._catalog.known_spaces.spaces.get(space)
            selected = declared is not None and scope.model in (None, declared.model)
        else:
            selected = scope.model is None and space not in self._attached
        if selected and scope.space in (None, space.hex()):
            self._spaces.add(space)
        return space in self._spaces

    def _count_unreachable(self, name: BlockName) -> None:
        scope = self._scope
        if scope.keys or scope.model is not None or scope.space not in (None, name.space.hex()):
            return
        self.unreachable += 1
        self.blocks += 1

    def _behind(self, keys: Sequence[bytes]) -> Iterator[bool]:
        """Select a prefix, in each space, and what was stored behind it. The prefix is asked for as a whole, because
        shared tiers may hold blocks of it that other nodes wrote."""
        for space in self._spaces:
            prefix = [BlockName(space, key) for key in keys]
            self._selected.update(prefix)
            self._add(prefix, parent=b"")
            for name in self._children.get((space, keys[-1]), ()):
                if name not in self._selected:
                    yield from self._descend(name)

    def _descend(self, root: BlockName) -> Iterator[bool]:
        """Select a block and all blocks behind it."""
        starts = [root]
        while starts:
            name: BlockName | None = starts.pop()
            assert name is not None
            parent = self._stored[name].parent
            run: list[BlockName] = []
            while name is not None and len(run) < MAX_PART_BLOCKS:
                run.append(name)
                self._selected.add(name)
                children = [
                    child for child in self._children.get((name.space, name.key), ()) if child not in self._selected
                ]
                starts += children[1:]
                name = children[0] if children else None
            if name is not None:
                starts.append(name)
            self._add(run, parent)
            if self._is_long(len(run)):
                yield True

    def _is_long(self, blocks: int) -> bool:
        """Count blocks that were looked at, and return whether the step should end."""
        self._looked_at += blocks
        if self._looked_at < MAX_STEP_BLOCKS:
            return False
        self._looked_at = 0
        return True

    def _add(self, names: list[BlockName], parent: bytes) -> None:
        keys = [name.key for name in names]
        sizes = {name: self._stored[name].length for name in names if name in self._stored}
        self.blocks += len(sizes)
        self.bytes += sum(sizes.values())
        self.parts.append(ChainPart([parent, *keys] if parent else keys, names, sizes))
