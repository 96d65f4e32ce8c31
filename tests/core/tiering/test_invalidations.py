"""Invalidations in tiers end, in bounded steps, and cover what their tombstones cover, also in cycles of parents."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest

from dataplane.core.tenants.eviction_queues import Rank
from dataplane.core.tiering import invalidations
from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.contents import TierContents
from dataplane.core.tiering.invalidations import KEYS_PER_UNIT, TierInvalidations, Tombstone, compacted
from dataplane.core.tiering.move_chains import ChainSelection
from dataplane.core.tiering.tier_order import TierEntry, TierShare
from dataplane.policies.lru import Lru
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from tests.core.tiering.tier_bench import PAGE, tier, tier_bench
from tests.dataplane import factories as make

# ---- bounded steps


SPACE, OTHER_SPACE = b"s" * 16, b"o" * 16
SIZE = 4096
LATEST = 1 << 40


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def stored(
    number: int, tenant: str = "", *, parent: int | None = None, sequence: int = 0, space: bytes = SPACE
) -> StoredBlock:
    above = b"" if parent is None else key(parent)
    return StoredBlock(BlockName(space, key(number)), tenant, sequence or number, SIZE, bytes(16), above)


def filled(blocks: int) -> TierContents:
    """Blocks of two tenants in turn, in chains of eight."""
    contents = TierContents(blocks * SIZE, "disk")
    for number in range(1, blocks + 1):
        parent = None if number % 8 == 1 else number - 1
        contents.add(stored(number, "ab"[number // 8 % 2], parent=parent), SIZE, float(number))
    return contents


class Visits:
    """Counts what is done to single blocks: judged by a tombstone, or moved in an eviction queue."""

    def __init__(self) -> None:
        self.count = 0

    def take(self) -> int:
        taken, self.count = self.count, 0
        return taken


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> Visits:
    visits = Visits()

    def counted(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: object, **named: object) -> object:
            visits.count += 1
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    counted(Tombstone, "covers")
    for name in ("insert", "remove", "touch", "evict"):
        counted(Lru, name)
    return visits


@contextmanager
def bounded(visits: Visits, most: int) -> Iterator[None]:
    visits.take()
    yield
    assert visits.take() <= most


@pytest.mark.parametrize(
    "tombstone",
    [
        Tombstone(LATEST),
        Tombstone(LATEST, tenant="a"),
        Tombstone(LATEST, keys=frozenset({key(1), key(2)}), last_key=key(2)),
    ],
    ids=["everything", "tenant", "prefix"],
)
@pytest.mark.parametrize("blocks", [2_000, 20_000])
def test_an_invalidation_is_in_force_at_once_and_carried_out_in_bounded_steps(
    visits: Visits, tombstone: Tombstone, blocks: int
) -> None:
    contents = filled(blocks)
    under_way = TierInvalidations(contents)
    with bounded(visits, 2):
        under_way.start(tombstone)
    dead = tombstone.among([entry.stored for entry in contents.entries.values()])
    assert dead
    with bounded(visits, 64):
        assert under_way.is_dead(contents.entries[next(iter(dead))])
    forgotten: list[TierEntry] = []
    while under_way:
        with bounded(visits, 2 * invalidations.SLICE_VISITS + 64):
            found = under_way.step()
        assert len(found) <= invalidations.SLICE_DEAD
        forgotten += found
        with bounded(visits, 2 * len(found)):
            for entry in found:
                contents.remove(entry.stored.name)
    assert {entry.stored.name for entry in forgotten} == dead
    assert len(contents) == blocks - len(dead)


@pytest.mark.parametrize("blocks", [2_000, 20_000])
def test_a_quota_that_is_set_or_removed_moves_no_block(visits: Visits, blocks: int) -> None:
    contents = filled(blocks)
    order = list(contents._order.common.queue.victims(Rank.NORMAL, 0.0))
    with bounded(visits, 0):
        contents.set_shares({"a": TierShare(floor_bytes=SIZE)})
    assert len(contents.tenants["a"].account.queue) == contents.tenants["a"].blocks
    assert contents.tenants["a"].account.bytes == contents.tenants["a"].bytes
    with bounded(visits, 0):
        contents.set_shares({})
    assert list(contents._order.common.queue.victims(Rank.NORMAL, 0.0)) == order, "the order is as before"


@pytest.mark.parametrize("seed", range(8))
def test_slices_find_covered_blocks_although_blocks_change(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that stay while an invalidation is under way are dead exactly if the tombstone covers them."""
    chance = random.Random(seed)
    monkeypatch.setattr(invalidations, "SLICE_VISITS", chance.randrange(1, 40))
    monkeypatch.setattr(invalidations, "SLICE_DEAD", chance.randrange(1, 10))
    contents = TierContents(1000 * SIZE, "disk")
    chains = {0: ("a", SPACE)}
    """Tenant and space of each block: a chain has one of each."""
    for number in range(1, 300):
        parent = None if chance.random() < 0.1 else chance.randrange(max(0, number - 20), number)
        chains[number] = (
            (chance.choice("ab"), chance.choice([SPACE, OTHER_SPACE])) if parent is None else chains[parent]
        )
        tenant, space = chains[number]
        block = stored(number, tenant, parent=parent, sequence=chance.randrange(1, 100), space=space)
        if chance.random() < 0.9:
            contents.add(block, SIZE, 0.0)
    prefix = [key(number) for number in range(5, 9)]
    tombstone = Tombstone(
        80,
        tenant=chance.choice(["a", None]),
        spaces=chance.choice([None, frozenset({SPACE})]),
        keys=chance.choice([None, frozenset(prefix)]),
        last_key=prefix[-1],
        excluded=frozenset({(SPACE, key(7))}),
    )
    dead = tombstone.among([entry.stored for entry in contents.entries.values()])
    under_way = TierInvalidations(contents)
    under_way.start(tombstone)
    assert {name for name, entry in contents.entries.items() if under_way.is_dead(entry)} == dead
    forgotten = set()
    added = 1000
    while under_way:
        for entry in under_way.step():
            forgotten.add(entry.stored.name)
            contents.remove(entry.stored.name)
        added += 1
        contents.add(stored(added, sequence=100 + added), SIZE, 0.0)
        if chance.random() < 0.5:
            contents.remove(BlockName(SPACE, key(chance.randrange(1001, added + 1))))
    assert forgotten == dead
    assert not dead & contents.entries.keys()


def test_invalidations_that_wait_are_merged_above_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invalidations, "MAX_STARTED", 4)
    contents = filled(2_000)
    under_way = TierInvalidations(contents)
    under_way.start(Tombstone(1, tenant="a"))
    under_way.step()
    for number in range(2, 8):
        under_way.start(Tombstone(number, tenant=f"nobody-{number}"))
    assert len(under_way) <= 5, "the one that has begun is not merged"
    assert sequences(under_way, contents) == {1, 2, 3, 4, 5}, "what is older than the merged ones"


def sequences(under_way: TierInvalidations, contents: TierContents) -> set[int]:
    """Carry out the invalidations, and return the sequences of the dead blocks."""
    dead = set()
    while under_way:
        for entry in under_way.step():
            dead.add(entry.stored.sequence)
            contents.remove(entry.stored.name)
    return dead


def test_many_invalidations_of_one_tenant_cover_no_block_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invalidations, "MAX_STARTED", 4)
    contents = filled(64)
    owned = {entry.stored.sequence for entry in contents.entries.values() if entry.stored.tenant == "a"}
    under_way = TierInvalidations(contents)
    under_way.start(Tombstone(5, tenant="b", keys=frozenset({key(2)}), last_key=key(2)))
    for number in range(20):
        under_way.start(Tombstone(LATEST, tenant="a", keys=frozenset({key(number)}), last_key=key(number)))
    assert len(under_way) <= 4
    assert sequences(under_way, contents) == owned, "they are merged into everything of their tenant"


@pytest.mark.parametrize("keys", [0, 10 * KEYS_PER_UNIT])
def test_compacted_tombstones_cover_at_least_the_same_blocks_and_are_small(keys: int) -> None:
    chance = random.Random(keys)
    tombstones: list[Tombstone] = []
    for number in range(1, 200):
        names = frozenset(key(chance.randrange(1, 10_000)) for _ in range(keys))
        tenant = chance.choice(["a", "b", "c"])
        added = Tombstone(number, tenant=tenant, keys=names or None, last_key=min(names, default=b""))
        tombstones = compacted([*tombstones, added], 16)
        assert sum(each.size for each in tombstones) <= 16
        for each in ("a", "b", "c"):
            latest = max((tombstone.before for tombstone in tombstones if tombstone.tenant == each), default=0)
            assert latest <= number
    assert {each.tenant for each in tombstones} <= {"a", "b", "c"}, "each tenant for itself"
    assert max(each.before for each in tombstones) == 199


# ---- cycles of parents


MODEL_SPACE = make.space(block_bytes=PAGE)
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
    space = bytes.fromhex(MODEL_SPACE.identity())
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
    contents = TierContents(1 << 20, "disk")
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
    run = tier_bench(16, tier(), spaces=(MODEL_SPACE,))
    run.restore(blocks_of(parents))
    whole = keys_of(run.catalog, Scope(tenant=""))
    assert sorted(whole) == sorted(KEYS[number] for number in (*parents, 5))


@pytest.mark.parametrize(
    ("cycle", "expected"),
    [("itself", {0}), ("two", {0, 1}), ("three and a tail", {0, 1, 2, 3, 4}), ("two cycles", {0, 1})],
)
def test_a_selection_of_a_prefix_returns_the_cycle_behind_it_once(cycle: str, expected: set[int]) -> None:
    run = tier_bench(16, tier(), spaces=(MODEL_SPACE,))
    run.restore(blocks_of(CYCLES[cycle]))
    selected = keys_of(run.catalog, Scope(tenant="", keys=KEYS[0]))
    assert sorted(selected) == sorted(KEYS[number] for number in expected)
