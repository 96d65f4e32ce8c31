"""Ancestors of blocks: a process that holds or stores a block depends on the chain before it."""

from __future__ import annotations

from collections.abc import Container, Sequence, Set

from dataplane.core.blocks.blocks import Block, BlockTable
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.states import STATE_MASK, State

_READY = int(State.READY)
MAX_ANCESTORS = 16_384
"""Maximum number of ancestors that one call returns."""
MAX_LOOKED_UP = 256
"""Maximum number of ancestors that one call looks up in the index because no reference to them is known."""


def chains_up_to(table: BlockTable, last: Sequence[Block], known: Container[Block] = ()) -> list[Block]:
    """Return the READY blocks of the chains that end with these blocks, last block first, so that they can be made as
    recent as what follows them. Chains that exceed the limits of one call are left out, as is what is before a `known`
    block, with it."""
    listed = [block for block in last if block.entry is not None]
    line = with_ancestors(table, listed, set(), known)
    return [block for block in reversed(line) if block.control & STATE_MASK == _READY]


def with_ancestors(
    table: BlockTable, leased: Sequence[Block], used: Set[Block], known: Container[Block] = ()
) -> list[Block]:
    """Return held blocks and the chains before them, up to a `known` block, ancestors first, so that ancestors can be
    made as recent as the blocks.

    A block whose ancestors exceed the limits of one call is left out and keeps its place: if only the block became more
    recent, its ancestors would be evicted before it.
    """
    lines: list[Block] = []
    seen: set[Block] = set()
    ancestors, to_look_up = MAX_ANCESTORS, MAX_LOOKED_UP
    for block in reversed(leased):
        line: list[Block] = []
        current: Block | None = block
        while current is not None and current not in seen and current not in known:
            seen.add(current)
            line.append(current)
            if current not in used:
                ancestors -= 1
            before = current.before
            if current.parent and (before is None or before.entry is None):
                to_look_up -= 1
                if to_look_up >= 0:
                    before = current.before = table.find(pack_keys([current.parent]), current.space)[0]
            if ancestors < 0 or to_look_up < 0:
                return lines
            current = before
        lines += reversed(line)
    return lines
