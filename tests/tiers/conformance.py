"""What every tier must do. The test module of a tier inherits `TierConformance` and gives the fixture `backend`."""

import random
import struct
import threading
from collections.abc import Iterator, Sequence
from itertools import product
from time import monotonic
from typing import Protocol

import pytest
import xxhash

from dataplane.protocol.stored_blocks import BlockName, Loaded, Outcome, StoredBlock
from dataplane.tiers.header import HEADER_BYTES
from dataplane.tiers.tier import BlockLoad, BlockStore, Tier, TierError
from tests.sizes import size
from tests.threads import join
from tests.tiers import blocks
from tests.tiers.blocks import (
    CLUSTER,
    OTHER_CLUSTER,
    WAIT_S,
    assert_holds,
    assert_lacks,
    block,
    contents,
    listed,
    load,
    name,
    sequences,
    soon,
    store,
)

KIB = 1 << 10
LENGTHS = (1, 4095, 4096, 4097, 64 * KIB, 64 * KIB + 1, 2 << 20)
THREADS = 8
STEPS = size(60, 25)
SHARED_BYTES = 20_001


class Backend(Protocol):
    """A store with tiers on it, and access to what is stored."""

    budget_bytes: int
    """Budget of the tiers that `open` opens: at least 16 MiB, and at most 256 MiB, or 0 if the type has none."""

    finds_earlier: bool
    """Whether a tier lists blocks that were stored before it was opened."""

    def open(self, cluster: bytes = CLUSTER) -> Tier:
        """Open a tier. Without `close` in between, only tiers that several nodes share are opened twice."""
        ...

    def stored(self, tier: Tier, of: BlockName) -> bytes:
        """Return what is stored for a block: the header, the data, and possibly padding."""
        ...

    def overwrite(self, tier: Tier, of: BlockName, data: bytes) -> None:
        """Replace what is stored for a block behind the tier's back. Fewer bytes: the rest is cut off or zeros."""
        ...

    def plant(self, of: BlockName) -> int:
        """Put things that are not blocks into the place of the tiers, one of them under the name of a block, others
        below the same names. Return how many of them a listing finds."""
        ...


class TierConformance:
    """The tests of a tier."""

    def bytes_stored(self, tier: Tier, backend: Backend, stored_block: Sequence[StoredBlock]) -> int:
        """Return what blocks take of the budget."""
        return sum(tier.stored_size(each.length) for each in stored_block)

    @pytest.fixture
    def tier(self, backend: Backend) -> Iterator[Tier]:
        opened = backend.open()
        yield opened
        opened.close()

    def test_a_block_comes_back_as_it_was_stored(self, tier: Tier) -> None:
        for number, length in enumerate(LENGTHS):
            stored = block(number, length)
            assert store(tier, stored) == [Outcome.OK], length
            assert_holds(tier, [stored])

    def test_memory_of_any_alignment_is_stored_and_loaded(self, tier: Tier) -> None:
        for offset, length in product((0, 1, 512, 4096), (4096, 70_001)):
            stored = block(1, length)
            memory = bytearray(offset + length)
            memory[offset:] = stored.data
            assert store(tier, BlockStore(stored.block, memoryview(memory)[offset:])) == [Outcome.OK]
            into = bytearray(b"\xaa" * (offset + length + 64))
            (loaded,) = tier.load([BlockLoad(stored.block.name, memoryview(into)[offset : offset + length])], soon())
            assert loaded == Loaded(Outcome.OK, stored.block), (offset, length)
            assert into[offset : offset + length] == stored.data
            assert into[:offset] == b"\xaa" * offset
            assert into[offset + length :] == b"\xaa" * 64

    def test_one_call_moves_many_blocks_in_the_order_of_its_arguments(self, tier: Tier) -> None:
        stored = [block(number, 1000 * number + 1) for number in range(1, 20)]
        assert store(tier, *stored) == [Outcome.OK] * len(stored)
        expected = [*reversed(stored), block(99, 10)]
        memory = [bytearray(each.block.length) for each in expected]
        loads = [BlockLoad(each.block.name, memoryview(into)) for each, into in zip(expected, memory, strict=True)]
        loaded = tier.load(loads, soon())
        assert loaded == [*(Loaded(Outcome.OK, each.block) for each in expected[:-1]), Loaded(Outcome.MISSING)]
        assert memory[:-1] == [each.data for each in expected[:-1]]

    def test_calls_without_blocks_do_nothing(self, tier: Tier) -> None:
        assert tier.lookup([], soon()) == []
        assert tier.store([], soon()) == []
        assert tier.load([], soon()) == []
        assert tier.delete([], soon()) == []

    def test_a_tenant_may_have_any_name_that_fits_a_header(self, tier: Tier) -> None:
        tenants = ["", "acme", "größe-東京-🙂", "é" * 1024, "\x00\n"]
        stored = [block(number, 100, tenant) for number, tenant in enumerate(tenants)]
        refused = [block(number, 100, tenant) for number, tenant in enumerate(["a" * 2049, "\ud800"], 10)]
        assert store(tier, *stored, *refused) == [Outcome.OK] * len(stored) + [Outcome.FAILED] * len(refused)
        assert_holds(tier, stored)
        assert_lacks(tier, refused)
        assert sorted(each.tenant for each in tier.blocks()) == sorted(tenants)

    def test_data_of_another_length_than_its_block_is_refused(self, tier: Tier) -> None:
        stored = block(1, 100)
        assert store(tier, BlockStore(stored.block, stored.data[:99])) == [Outcome.FAILED]
        assert_lacks(tier, [stored])

    def test_a_block_replaces_the_one_of_its_name(self, tier: Tier, backend: Backend) -> None:
        for length in (100, 100, 1 << 20, 1):
            stored = block(1, length)
            assert store(tier, stored) == [Outcome.OK]
            assert_holds(tier, [stored])
            assert listed(tier) == [stored.block]
            assert tier.usage().stored_bytes == self.bytes_stored(tier, backend, [stored.block]), length

    def test_keys_of_two_spaces_are_two_blocks(self, tier: Tier) -> None:
        one = block(1, 100)
        renamed = BlockName(b"another space...", one.block.name.key)
        data = contents(renamed, 1, 200)
        sequence = next(sequences)
        other = BlockStore(StoredBlock(renamed, "acme", sequence, 200, blocks.checksum(data)), data)
        assert store(tier, one, other) == [Outcome.OK] * 2
        assert_holds(tier, [one, other])

    def test_a_deleted_block_is_gone_and_may_be_deleted_again(self, tier: Tier) -> None:
        stored = [block(1, 100), block(2, 5000)]
        store(tier, *stored)
        names = [each.block.name for each in stored[:1]]
        assert tier.delete(names, soon()) == [Outcome.OK]
        assert tier.delete([*names, name(7)], soon()) == [Outcome.OK] * 2
        assert_lacks(tier, stored[:1])
        assert_holds(tier, stored[1:])

    def test_usage_counts_stored_blocks(self, tier: Tier, backend: Backend) -> None:
        stored = [block(number, 3000 * number) for number in range(1, 6)]
        store(tier, *stored)
        tier.delete([stored[0].block.name], soon())
        found = tier.usage()
        assert found.blocks == 4
        assert found.stored_bytes == self.bytes_stored(tier, backend, [each.block for each in stored[1:]])
        assert found.budget_bytes == backend.budget_bytes
        assert found.corrupt_blocks == 0

    def test_blocks_lists_stored_blocks(self, tier: Tier) -> None:
        stored = [block(number, 100 + number, tenant=f"tenant {number % 3}") for number in range(40)]
        store(tier, *stored)
        assert sorted(listed(tier), key=lambda each: each.name) == [each.block for each in stored]

    def test_a_tier_that_answers_is_healthy(self, tier: Tier) -> None:
        assert tier.health(soon()).ok

    def test_a_full_tier_refuses_blocks_until_there_is_room(self, tier: Tier, backend: Backend) -> None:
        if not backend.budget_bytes:
            pytest.skip("this tier has no budget")
        length = 1 << 20
        stored: list[BlockStore] = []
        outcome = Outcome.OK
        while outcome is Outcome.OK:
            assert len(stored) * length <= 4 * backend.budget_bytes
            candidate = block(len(stored), length)
            (outcome,) = store(tier, candidate)
            assert tier.usage().stored_bytes <= backend.budget_bytes
            if outcome is Outcome.OK:
                stored.append(candidate)
        assert outcome is Outcome.FULL
        assert stored
        assert_lacks(tier, [candidate])
        assert_holds(tier, [stored[0], stored[-1]])
        tier.delete([stored[0].block.name], soon())
        assert store(tier, candidate) == [Outcome.OK]
        assert_holds(tier, [candidate])

    def test_after_its_deadline_a_call_does_nothing(self, tier: Tier) -> None:
        stored_block, other = block(1, 5000), block(2, 5000)
        store(tier, stored_block)
        past = monotonic() - 1
        assert tier.store([other], past) == [Outcome.LATE]
        assert tier.delete([stored_block.block.name], past) == [Outcome.LATE]
        memory = memoryview(bytearray(5000))
        assert tier.load([BlockLoad(stored_block.block.name, memory)], past) == [Loaded(Outcome.LATE)]
        assert_holds(tier, [stored_block])
        assert_lacks(tier, [other])

    # --- bytes that changed

    def test_memory_of_another_length_is_not_loaded_into(self, tier: Tier) -> None:
        stored = block(1, 5000)
        store(tier, stored)
        (loaded,) = tier.load([BlockLoad(stored.block.name, memoryview(bytearray(4999)))], soon())
        assert loaded == Loaded(Outcome.CORRUPT)

    def test_a_flipped_bit_is_never_served(self, tier: Tier, backend: Backend) -> None:
        stored, other = block(1, 70_000), block(2, 70_000)
        assert store(tier, stored, other) == [Outcome.OK] * 2
        for at in (0, 8, 120, 200, HEADER_BYTES, HEADER_BYTES + 50_000, HEADER_BYTES + 69_999):
            changed = bytearray(backend.stored(tier, stored.block.name))
            changed[min(at, len(changed) - 1)] ^= 0x10
            backend.overwrite(tier, stored.block.name, bytes(changed))
            _assert_refused(tier, stored, at)
            assert_holds(tier, [other])
            assert store(tier, stored) == [Outcome.OK]
            assert_holds(tier, [stored])

    def test_a_truncated_block_is_never_served(self, tier: Tier, backend: Backend) -> None:
        stored = block(1, 70_000)
        for kept_bytes in (0, 100, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 69_999):
            assert store(tier, stored) == [Outcome.OK]
            whole = backend.stored(tier, stored.block.name)
            backend.overwrite(tier, stored.block.name, whole[: min(kept_bytes, len(whole) - 1)])
            _assert_refused(tier, stored, kept_bytes)

    def test_swapped_blocks_are_never_served_for_each_other(self, tier: Tier, backend: Backend) -> None:
        one, other = block(1, 70_000), block(2, 70_000)
        store(tier, one, other)
        stored = [backend.stored(tier, each.block.name) for each in (one, other)]
        backend.overwrite(tier, one.block.name, stored[1])
        backend.overwrite(tier, other.block.name, stored[0])
        _assert_refused(tier, one)
        _assert_refused(tier, other)

    def test_an_older_block_instead_of_a_newer_one_is_not_served_as_newer(self, tier: Tier, backend: Backend) -> None:
        old, new = block(1, 70_000), block(1, 70_000)
        store(tier, old)
        before = backend.stored(tier, old.block.name)
        store(tier, new)
        backend.overwrite(tier, new.block.name, before)
        loaded, data = load(tier, new)
        assert loaded != Loaded(Outcome.OK, new.block)
        assert loaded.outcome is not Outcome.OK or (loaded.block == old.block and data == old.data)

    def test_a_header_of_another_version_is_not_served(self, tier: Tier, backend: Backend) -> None:
        stored = block(1, 70_000)
        for version in (0, 3):
            assert store(tier, stored) == [Outcome.OK]
            changed = bytearray(backend.stored(tier, stored.block.name))
            struct.pack_into("<I", changed, 8, version)
            struct.pack_into("<Q", changed, 112, 0)
            struct.pack_into("<Q", changed, 112, xxhash.xxh3_64_intdigest(changed[:HEADER_BYTES]))
            backend.overwrite(tier, stored.block.name, bytes(changed))
            _assert_refused(tier, stored, version)

    def test_foreign_things_are_skipped_and_counted(self, backend: Backend) -> None:
        stored, taken, later = block(1, 5000), block(2, 5000), block(3, 5000)
        tier = backend.open()
        try:
            store(tier, stored)
            planted = backend.plant(taken.block.name)
            for again in range(2):
                assert tier.health(soon()).ok
                assert listed(tier) == ([stored.block] if backend.finds_earlier or not again else [])
                usage = tier.usage()
                assert (usage.foreign_objects, bool(usage.first_foreign)) == (planted, bool(planted)), usage
                assert_holds(tier, [stored])
                if not again:
                    tier.close()
                    tier = backend.open()
            if planted:
                _assert_refused(tier, taken)
            assert store(tier, taken, later) == [Outcome.OK] * 2
            assert_holds(tier, [stored, taken, later])
            assert tier.delete([taken.block.name, later.block.name], soon()) == [Outcome.OK] * 2
            assert_lacks(tier, [taken, later])
            assert listed(tier) == ([stored.block] if backend.finds_earlier else [])
        finally:
            tier.close()

    # --- other nodes and other times

    def test_blocks_stay_when_a_tier_is_closed(self, backend: Backend) -> None:
        replaced, deleted = block(1, 100), block(100, 100)
        stored = [block(number, length) for number, length in enumerate(LENGTHS)]
        tier = backend.open()
        store(tier, replaced, deleted)
        store(tier, *stored)
        tier.delete([deleted.block.name], soon())
        tier.close()
        tier = backend.open()
        try:
            assert_holds(tier, stored)
            assert_lacks(tier, [deleted])
        finally:
            tier.close()

    def test_a_closed_tier_raises_and_may_be_closed_again(self, backend: Backend) -> None:
        tier = backend.open()
        stored = block(1, 100)
        store(tier, stored)
        tier.close()
        tier.close()
        with pytest.raises(TierError):
            tier.lookup([name(1)], soon())
        with pytest.raises(TierError):
            store(tier, stored)
        with pytest.raises(TierError):
            load(tier, stored)
        with pytest.raises(TierError):
            tier.delete([name(1)], soon())
        with pytest.raises(TierError):
            list(tier.blocks())
        health = tier.health(soon())
        assert not health.ok
        assert health.reason

    def test_another_cluster_never_sees_a_block(self, backend: Backend) -> None:
        tier = backend.open()
        stored = block(1, 5000)
        store(tier, stored)
        tier.close()
        try:
            other = backend.open(OTHER_CLUSTER)
        except TierError:
            pass
        else:
            try:
                assert_lacks(other, [stored])
                assert list(other.blocks()) == []
            finally:
                other.close()
        tier = backend.open()
        try:
            assert_holds(tier, [stored])
        finally:
            tier.close()

    # --- several threads

    def test_calls_of_many_threads_agree_with_a_model(self, tier: Tier, backend: Backend) -> None:
        """Each thread has names of its own, whose state it knows, and all share three, of which no wrong byte may
        come."""
        failures: list[BaseException] = []
        models: list[dict[int, BlockStore]] = [{} for _ in range(THREADS)]

        def work(thread: int) -> None:
            try:
                _work(tier, random.Random(thread), thread, models[thread])
            except BaseException as error:  # noqa: BLE001  # reported below
                failures.append(error)

        threads = [threading.Thread(target=work, args=[number], name=f"worker {number}") for number in range(THREADS)]
        for each in threads:
            each.start()
        join(*threads)
        assert not failures, failures
        for model in models:
            assert_holds(tier, list(model.values()))
        shared = [number for number in range(3) if tier.lookup([name(number)], soon())[0]]
        stored_block = sorted([number for model in models for number in model] + shared)
        assert sorted(int.from_bytes(each.name.key, "big") for each in tier.blocks()) == stored_block
        found = tier.usage()
        assert found.blocks == len(stored_block)
        assert found.stored_bytes == self.bytes_stored(tier, backend, list(tier.blocks()))
        assert found.corrupt_blocks == 0


def _work(tier: Tier, choice: random.Random, thread: int, model: dict[int, BlockStore]) -> None:
    for _ in range(STEPS):
        is_shared = choice.random() < 0.3
        number = choice.randrange(3) if is_shared else 10 * (thread + 1) + choice.randrange(4)
        step = choice.choice(["store", "store", "load", "load", "delete"])
        length = SHARED_BYTES if is_shared else choice.choice([5000, 50_000])
        if step == "store":
            stored = block(number, length, tenant=f"tenant {thread}")
            assert store(tier, stored) == [Outcome.OK]
            if not is_shared:
                model[number] = stored
        elif step == "delete":
            assert tier.delete([name(number)], monotonic() + WAIT_S) == [Outcome.OK]
            model.pop(number, None)
        elif is_shared:
            _load_shared(tier, name(number))
        elif number in model:
            assert_holds(tier, [model[number]])
        else:
            assert_lacks(tier, [block(number, length)])


def _load_shared(tier: Tier, of: BlockName) -> None:
    """Load a block that other threads store and delete meanwhile: whatever comes must be what one of them stored."""
    memory = bytearray(SHARED_BYTES)
    (loaded,) = tier.load([BlockLoad(of, memoryview(memory))], soon())
    assert loaded.outcome in (Outcome.OK, Outcome.MISSING)
    if loaded.block is not None:
        assert memory == contents(of, loaded.block.sequence, SHARED_BYTES)


def _assert_refused(tier: Tier, stored: BlockStore, case: object = None) -> None:
    """The block is not served, and gone afterwards."""
    loaded, _ = load(tier, stored)
    assert loaded in (Loaded(Outcome.CORRUPT), Loaded(Outcome.MISSING)), case
    assert_lacks(tier, [stored])
