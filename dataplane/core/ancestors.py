"""Held blocks and what they stand on: who holds a block holds the chain before it."""

from __future__ import annotations

from collections.abc import Sequence, Set

from dataplane.core.blocks import Block, BlockTable
from dataplane.protocol.layout import pack_keys

MAX_ANCESTORS = 16_384
"""Ancestors of held blocks that are made as new as those, a time."""
MAX_LOOKED_UP = 256
"""Of those, the ones that are looked up in the index, for they are not known by reference."""


def with_ancestors(table: BlockTable, held: Sequence[Block], used: Set[Block]) -> list[Block]:
    """Held blocks and the chains before them, ancestors first: who holds one holds those, they must not be older.

    A block whose ancestors are more than one time allows is left out, it stays where it is: were it alone made
    newer, its ancestors would go before it.
    """
    lines: list[Block] = []
    seen: set[Block] = set()
    ancestors, to_look_up = MAX_ANCESTORS, MAX_LOOKED_UP
    for block in reversed(held):
        line: list[Block] = []
        each: Block | None = block
        while each is not None and each not in seen:
            seen.add(each)
            line.append(each)
            if each not in used:
                ancestors -= 1
            before = each.before
            if each.parent and (before is None or before.entry is None):
                to_look_up -= 1
                if to_look_up >= 0:
                    before = each.before = table.find(pack_keys([each.parent]), each.space)[0]
            if ancestors < 0 or to_look_up < 0:
                return lines
            each = before
        lines += reversed(line)
    return lines
