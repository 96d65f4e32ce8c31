"""Checksums: a reader never gets bytes that it was asked to check and that are not what a writer stored."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from dataplane.client import Client, ClientEvent, attach
from dataplane.protocol.checksums import NONE, Checksum, checksum
from dataplane.protocol.engine import SpaceRequest
from dataplane.protocol.layout import H_ADOPTED_NS
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect, read, store
from tests.dataplane.client.faulty_memory import checksum_in_index, flip, row_of, say_adopted
from tests.dataplane.plane import Plane, contents, wait_for
from tests.dataplane.recovery.support.harness import Supervised, supervised

# ---- readers


PAGE = 4096


def names(events: list[ClientEvent]) -> list[str]:
    return [event.name for event in events if event.name != "attached"]


def test_a_corrupt_block_is_a_miss_an_event_and_a_counter_and_its_neighbours_stay(plane: Plane) -> None:
    chain = make.keys(8)
    events: list[ClientEvent] = []
    with connect(plane) as writer, connect(plane, verify="always", on_event=events.append) as reader:
        assert store(writer, chain) == 8
        flip(plane, reader, chain[5], at=PAGE - 1)
        assert read(reader, chain) == 5
        assert names(events) == ["corrupt"]
        stats = plane.describe()
        assert (stats.totals.corrupt_blocks, stats.totals.false_reports) == (1, 0)
        assert stats.pool.blocks == 7
        assert reader.lookup(chain) == 5
        assert read(reader, chain[6:]) == 2
        assert store(writer, chain) == 1, "it can be stored again"
        assert read(reader, chain) == 8
        wait_for(lambda: "block.corrupted" in plane.log(), "an operator reads of it")


def test_sampling_looks_at_one_block_of_64(plane: Plane) -> None:
    leases = []
    with connect(plane) as writer, connect(plane, verify="sample") as reader:
        for number in range(8):
            chain = make.keys(127, number)
            store(writer, chain)
            for key in chain:
                flip(plane, reader, key)
            with reader.acquire(chain) as lease:
                leases.append(len(lease))
        assert max(leases) < 127, "no run of 127 blocks passes without a look"
        assert len(set(leases)) > 1, "which ones are looked at is chance"
        assert plane.describe().totals.corrupt_blocks == 8


def test_without_verification_nothing_is_read_twice(plane: Plane) -> None:
    chain = make.keys(3)
    with connect(plane) as client:
        store(client, chain)
        flip(plane, client, chain[1])
        assert len(client.acquire(chain)) == 3
        assert plane.describe().totals.corrupt_blocks == 0


def test_blocks_that_lived_through_a_crash_are_looked_at_once(plane: Plane) -> None:
    old, new = make.keys(4, "old"), make.keys(2, "new")
    with connect(plane) as client:
        store(client, old)
        say_adopted(plane, time.time_ns() + 10**9)
        flip(plane, client, old[2])
        assert len(client.acquire(old)) == 2
        assert plane.describe().totals.corrupt_blocks == 1
        flip(plane, client, old[0])  # after its one look
        assert len(client.acquire(old)) == 2
        say_adopted(plane, 1)  # before all of them
        store(client, new)
        flip(plane, client, new[0])
        assert len(client.acquire(new)) == 2


def test_each_crash_asks_for_another_look(plane: Plane) -> None:
    chain = make.keys(2)
    with connect(plane) as client:
        store(client, chain)
        for crash in (1, 2):
            say_adopted(plane, time.time_ns() + crash * 10**9)
            assert len(client.acquire(chain)) == 2
        flip(plane, client, chain[0])
        say_adopted(plane, time.time_ns() + 10**10)
        assert len(client.acquire(chain)) == 0


def test_a_corrupt_block_stays_a_miss_without_a_data_plane(plane: Plane) -> None:
    chain = make.keys(4)
    with connect(plane, verify="sample") as reader, connect(plane) as writer:
        store(writer, chain)
        say_adopted(plane, time.time_ns() + 10**9)
        assert len(reader.acquire(chain)) == 4
        flip(plane, reader, chain[1])
        say_adopted(plane, time.time_ns() + 2 * 10**9)
        plane.kill()
        for _ in range(300):  # sampling alone would let it through now and then
            assert len(reader.acquire(chain)) == 1


def test_a_pin_does_not_keep_a_corrupt_block(plane: Plane) -> None:
    chain = make.keys(2)
    with connect(plane, verify="always") as client, plane.manager() as manager:
        manager.push(*make.pins([make.pin("system", chain)]))
        store(client, chain)
        assert plane.describe().pool.pinned_bytes == 2 * PAGE
        flip(plane, client, chain[0])
        assert len(client.acquire(chain)) == 0
        stats = plane.describe()
        assert (stats.pool.blocks, stats.pool.pinned_bytes) == (1, PAGE)


def test_the_ranks_of_a_corrupt_block_miss_together(plane: Plane) -> None:
    chain = make.keys(4)
    spaces = [make.space(rank=rank, world_size=2) for rank in range(2)]
    with attach(plane.socket, spaces, timeout_s=30, verify="always") as client:
        for space in range(2):
            store(client, chain, space=space)
        flip(plane, client, chain[2], space=1)
        with client.acquire(chain) as lease:
            assert len(lease) == 2
            assert bytes(lease.view(1, space=1)) == contents(chain, PAGE)[1]
            with pytest.raises(IndexError):
                lease.view(2, space=0)
        assert plane.describe().totals.corrupt_blocks == 1


def test_a_reader_that_may_not_write_reports_too(plane: Plane) -> None:
    chain = make.keys(1)
    with (
        connect(plane) as writer,
        attach(plane.socket, [SpaceRequest(make.space(), writes=False)], timeout_s=30, verify="always") as reader,
    ):
        store(writer, chain)
        flip(plane, writer, chain[0])
        assert len(reader.acquire(chain)) == 0
        assert plane.describe().totals.corrupt_blocks == 1


def test_views_that_are_being_read_outlive_the_block(plane: Plane) -> None:
    chain = make.keys(1)
    with connect(plane) as client, connect(plane, verify="always") as reader:
        store(client, chain)
        view = client.acquire(chain).view(0)
        flip(plane, client, chain[0])
        assert len(reader.acquire(chain)) == 0
        assert plane.describe().pool.blocks == 1, "its counter is up"
        assert bytes(view[1:]) == contents(chain, PAGE)[0][1:]
        del view
        wait_for(lambda: plane.describe().pool.blocks == 0, "the last view lets the block go")


def test_an_unknown_verification_is_a_wrong_argument(plane: Plane) -> None:
    for verify in ("sometimes", "", "ALWAYS", None):
        with pytest.raises(ValueError, match="verify must be one of off, sample, always"):
            connect(plane, verify=verify)


def test_without_membarrier_the_same_holds(plane: Plane) -> None:
    chain = make.keys(3)
    with connect(plane, verify="always") as client:
        store(client, chain)
        attachment = client._memory.current
        assert attachment is not None
        attachment.membarrier = False
        assert len(client.acquire(chain)) == 3
        flip(plane, client, chain[1])
        assert len(client.acquire(chain)) == 1
        assert row_of(client, chain[0])[0] >= 0
        assert plane.describe().totals.corrupt_blocks == 1


# ---- writers


def test_copied_blocks_carry_the_checksum_of_their_bytes(plane: Plane) -> None:
    with connect(plane, verify="always") as client:
        for nbytes in (1, PAGE, 64 << 10, (512 << 10) - 1, 512 << 10, (512 << 10) + 1, 1_500_000):
            chain = make.keys(7, nbytes)
            data = np.random.default_rng(nbytes).integers(0, 256, 7 * nbytes, np.uint8)
            with client.reserve(chain[2:4], nbytes) as hole:  # the rest is no run of neighbours
                hole.copy_from(data[2 * nbytes : 4 * nbytes])
                hole.commit()
            with client.reserve(chain, nbytes) as reservation:
                assert reservation.copy_from(data) == 5 * nbytes
                assert reservation.commit().blocks == 5
            for at, key in enumerate(chain):
                assert checksum_in_index(client, key) == checksum(data[at * nbytes : (at + 1) * nbytes])
            with client.acquire(chain) as lease:
                assert len(lease) == 7
                assert b"".join(bytes(lease.view(at)) for at in range(7)) == data.tobytes()


def test_blocks_filled_through_views_are_summed_at_commit_also_after_a_copy(plane: Plane) -> None:
    chain = make.keys(3)
    with connect(plane, verify="always") as client:
        with client.reserve(chain, PAGE) as reservation:
            early = reservation.view(0)
            reservation.copy_from(b"".join(contents(chain, PAGE)))
            early[:4] = b"past"
            reservation.array(2)[:4] = 7
            reservation.commit()
        with client.acquire(chain) as lease:
            assert len(lease) == 3
            assert bytes(lease.view(0)[:4]) == b"past"
            assert bytes(lease.view(2)[:4]) == b"\7\7\7\7"
            assert [checksum_in_index(client, key) for key in chain] == [checksum(lease.view(at)) for at in range(3)]


def test_only_published_positions_are_summed(plane: Plane) -> None:
    chain = make.keys(4)
    with connect(plane, verify="always") as client:
        with client.reserve(chain, PAGE) as reservation:
            reservation.copy_from(b"".join(contents(chain, PAGE)))
            assert reservation.commit([3, 1]).blocks == 2
        for at in (1, 3):
            assert checksum_in_index(client, chain[at]) == checksum(contents(chain, PAGE)[at])
            assert len(client.acquire(chain[at : at + 1])) == 1


def test_given_checksums_are_taken_as_they_are(plane: Plane) -> None:
    chain = make.keys(3)
    right = [checksum(each) for each in contents(chain, PAGE)]
    with connect(plane, verify="always") as client:
        with client.reserve(chain, PAGE) as reservation:
            reservation.copy_from(b"".join(contents(chain, PAGE)))
            reservation.commit(checksums=[right[0], NONE, bytes(15) + b"\x01"])
        assert checksum_in_index(client, chain[1]) == NONE
        assert len(client.acquire(chain)) == 2, "none is never wrong, and a wrong one always is"
        assert plane.describe().totals.corrupt_blocks == 1


def test_without_checksums_blocks_are_read(plane: Plane) -> None:
    chain = make.keys(2)
    with connect(plane, checksums=False, verify="always") as client:
        with client.reserve(chain, PAGE) as reservation:
            reservation.copy_from(b"".join(contents(chain, PAGE)))
            reservation.commit()
        assert [checksum_in_index(client, key) for key in chain] == [NONE, NONE]
        assert len(client.acquire(chain)) == 2


def test_a_commit_of_nothing_sums_nothing(plane: Plane) -> None:
    chain = make.keys(2)
    with connect(plane) as client:
        reservation = client.reserve(chain, PAGE)
        assert reservation.commit([]).blocks == 0
        assert reservation.commit().blocks == 0
        with client.reserve(chain, PAGE) as again:
            assert again.commit().blocks == 2
        assert client.reserve(chain, PAGE).commit().blocks == 0, "all are there"


def test_a_checksum_is_never_the_value_for_none() -> None:
    pieces = Checksum()
    assert pieces.digest() == checksum(b"")
    for size in (0, 1, 16, 17, 240, 241, PAGE):
        data = bytes(size)
        pieces = Checksum()
        pieces.update(data[: size // 3])
        pieces.update(data[size // 3 :])
        assert pieces.digest() == checksum(data) != NONE
        assert len(checksum(data)) == 16


def test_a_digest_that_happens_to_be_zero_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xxhash.xxh3_128_digest", lambda data: bytes(16))
    assert checksum(b"x") == b"\x01" + bytes(15)


# ---- after a crash


def adopted_at(client: Client) -> int:
    attachment = client._memory.current
    return 0 if attachment is None else attachment.index.cells[H_ADOPTED_NS]


def crash(plane: Supervised, client: Client) -> None:
    """kill -9, and wait until the next data plane has taken the memory over."""
    before, epoch = adopted_at(client), client.epoch
    plane.kill_plane()
    wait_for(
        lambda: client.lookup([]) == 0 and client.epoch != epoch and adopted_at(client) > before,
        "the memory is adopted, and the client attaches again",
    )


def test_damaged_blocks_are_misses_after_a_crash_and_others_are_served(socket_dir: Path) -> None:
    chain = make.keys(6)
    with supervised(socket_dir) as plane, connect(plane) as client:
        assert store(client, chain) == 6
        flip(plane, client, chain[4], at=100)
        crash(plane, client)
        assert read(client, chain) == 4
        stats = plane.wait_stats(lambda stats: stats.totals.corrupt_blocks == 1, "it was reported")
        assert stats.pool.blocks == 5
        assert client.lookup(chain) == 4
        assert store(client, chain) == 1
        crash(plane, client)
        assert read(client, chain) == 6
        assert plane.describe().totals.corrupt_blocks == 0, "counted since its start"
