"""Engines choose the parents of blocks, so they may form cycles. No walk over parents or children is endless."""

from __future__ import annotations

from itertools import islice

import pytest

from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.contents import TierContents
from dataplane.core.tiering.invalidations import TierInvalidations, Tombstone
from dataplane.core.tiering.move_chains import ChainSelection
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from tests.core.tiering.tier_bench import PAGE, tier, tier_bench
from tests.dataplane import factories as make

SPACE = make.space(block_bytes=PAGE)
KEYS = make.keys(6)
CYCLES = {
    "itself": {0: 0},
    "two": {0: 1, 1: 0},
    "three and a tail": {0: 2, 1: 0, 2: 1, 3: 1, 4: 3},
    "two cycles": {0: 1, 1: 0, 2: 3, 3: 2},
}
"""Parents by number."""
MAX_STEPS = 100


def blocks_of(parents: dict[int, int]) -> list[StoredBlock]:
    """Blocks with these parents, and one without a parent."""
    space = bytes.fromhex(SPACE.identity())
    parent_keys = {number: KEYS[parent] for number, parent in parents.items()} | {5: b""}
    return [
        StoredBlock(BlockName(space, KEYS[number]), "", number + 1, PAGE, bytes(16), parent)
        for number, parent in parent_keys.items()
    ]


def keys_of(catalog: Catalog, scope: Scope) -> list[bytes]:
    """The keys of the held blocks that a selection returns, in all its parts."""
    selection = ChainSelection(catalog, scope)
    steps = sum(1 for _ in islice(iter(selection.step, False), MAX_STEPS))
    assert steps < MAX_STEPS
    assert selection.blocks == sum(len(part.sizes) for part in selection.parts)
    return [name.key for part in selection.parts for name in part.sizes]


@pytest.mark.parametrize("parents", CYCLES.values(), ids=list(CYCLES))
@pytest.mark.parametrize("prefix", [[0], [1], [5], [5, 0]])
def test_an_invalidation_ends_and_covers_what_its_tombstone_covers(parents: dict[int, int], prefix: list[int]) -> None:
    contents = TierContents(1 << 20)
    for block in blocks_of(parents):
        contents.add(block, PAGE, 0.0)
    keys = [KEYS[number] for number in prefix]
    tombstone = Tombstone(100, keys=frozenset(keys), last_key=keys[-1])
    expected = tombstone.among([entry.stored for entry in contents.entries.values()])
    invalidations = TierInvalidations(contents)
    invalidations.start(tombstone)
    assert {name for name, entry in contents.entries.items() if invalidations.is_dead(entry)} == expected
    dead: set[BlockName] = set()
    for _ in range(MAX_STEPS):
        for entry in invalidations.step():
            dead.add(entry.stored.name)
            contents.remove(entry.stored.name)
    assert (len(invalidations), dead) == (0, expected)


@pytest.mark.parametrize("parents", CYCLES.values(), ids=list(CYCLES))
def test_a_selection_returns_each_block_of_a_cycle_once(parents: dict[int, int]) -> None:
    run = tier_bench(16, tier(), spaces=(SPACE,))
    run.restore(blocks_of(parents))
    whole = keys_of(run.catalog, Scope(tenant=""))
    assert sorted(whole) == sorted(KEYS[number] for number in (*parents, 5))


@pytest.mark.parametrize(
    ("cycle", "expected"),
    [("itself", {0}), ("two", {0, 1}), ("three and a tail", {0, 1, 2, 3, 4}), ("two cycles", {0, 1})],
)
def test_a_selection_of_a_prefix_returns_the_cycle_behind_it_once(cycle: str, expected: set[int]) -> None:
    run = tier_bench(16, tier(), spaces=(SPACE,))
    run.restore(blocks_of(CYCLES[cycle]))
    selected = keys_of(run.catalog, Scope(tenant="", keys=KEYS[0]))
    assert sorted(selected) == sorted(KEYS[number] for number in expected)
