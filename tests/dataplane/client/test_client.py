"""The engine's client on a running data plane: what engines rely on, and that nothing of it raises in their loop."""

from __future__ import annotations

import gc
import math
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dataplane.client import (
    AttachRefused,
    Client,
    ClientEvent,
    Code,
    CommitResult,
    Lease,
    ReserveOutcome,
    Space,
    attach,
)
from dataplane.protocol.control.scopes import Invalidate, Scope
from dataplane.protocol.control.sessions import ListSessions
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST, SpaceRequest
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect, store
from tests.dataplane.plane import Plane, contents
from tests.threads import join

PAGE = 4096


def fill(client: Client, nbytes: int = make.MIB, blocks: int = 48) -> int:
    """Ask for three pools full of room; how many blocks were stored."""
    return sum(store(client, [make.key(("fill", number))], nbytes) for number in range(blocks))


# ---- storing and reading


def test_stored_blocks_are_read_by_another_engine(plane: Plane) -> None:
    chain = make.keys(5)
    with connect(plane) as writer, connect(plane, group="reader") as reader:
        assert reader.lookup(chain) == 0
        assert store(writer, chain[:4]) == 4
        assert reader.lookup(chain) == 4
        with reader.acquire(chain) as lease:
            assert len(lease) == 4
            assert [bytes(lease.view(at)) for at in range(4)] == contents(chain[:4], PAGE)
            assert lease.nbytes(0) == PAGE
            with pytest.raises(IndexError):
                lease.view(4)
        assert (reader.lookup([]), len(reader.acquire([]))) == (0, 0)
        with pytest.raises(ValueError, match="released"):
            lease.view(0)


def test_a_piece_of_a_chain_names_the_key_before_it(plane: Plane) -> None:
    chain = make.keys(3)
    with connect(plane) as client:
        with pytest.raises(ValueError, match="expected a parent of 32 bytes, or none, got 31"):
            client.reserve(chain[1:], PAGE, parent=chain[0][1:])
        for at, key in enumerate(chain):
            assert store(client, [key], parent=chain[at - 1] if at else b"", pin_s=at % 2) == 1
        with plane.manager() as manager:
            assert manager.ask(Invalidate("n", Scope(keys=chain[0]))).blocks == 3


def test_hints_are_sent_and_wrong_ones_are_refused(plane: Plane) -> None:
    chain = make.keys(3)
    with connect(plane) as client:
        assert client.hint_max_s == 3600.0
        for seconds in (-1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match="expected ttl_s and pin_s of 0 or more seconds"):
                client.reserve(chain, PAGE, pin_s=seconds)
        assert store(client, chain[:2], ttl_s=60) == 2
        assert store(client, chain, pin_s=60) == 1
        totals = plane.describe().totals
        assert (totals.hinted_ttl_blocks, totals.hinted_pin_blocks) == (2, 3)


def test_a_session_is_sent_and_a_wrong_name_is_refused(plane: Plane) -> None:
    chain = make.keys(3)
    with connect(plane) as client:
        assert client.knows_sessions
        for name in ("a b", "x" * 65, ".."):
            with pytest.raises(ValueError, match="session: expected 1 to 64 of the characters"):
                client.reserve(chain, PAGE, session=name)
        assert store(client, chain, session="talk") == 3
        with plane.manager() as manager:
            (state,) = manager.ask(ListSessions("n")).sessions
        assert (state.session, state.bytes, state.private_bytes) == ("talk", {"memory": 3 * PAGE}, 3 * PAGE)


def test_nothing_is_readable_before_the_commit_and_an_abandoned_reservation_leaves_nothing(plane: Plane) -> None:
    chain = make.keys(3)
    with connect(plane) as client:
        with client.reserve(chain, PAGE) as reservation:
            assert reservation.writable == [0, 1, 2]
            reservation.view(0)[:] = b"x" * PAGE
            assert client.lookup(chain) == 0
        with pytest.raises(ValueError, match="ended"):
            reservation.view(0)
        assert client.lookup(chain) == 0
        assert plane.describe().pool.used_bytes == 0
        assert reservation.commit().blocks == 0


def test_outcomes_distinguish_cached_and_reserved_blocks(plane: Plane) -> None:
    chain = make.keys(4)
    with connect(plane) as one, connect(plane, group="two") as two:
        store(one, chain[:1])
        with one.reserve(chain[:3], PAGE) as open_one:
            other = two.reserve(chain, PAGE)
            assert other.outcomes.tolist() == [
                ReserveOutcome.PRESENT,
                ReserveOutcome.BUSY,
                ReserveOutcome.BUSY,
                ReserveOutcome.WRITE,
            ]
            assert other.writable == [3]
            assert open_one.commit([1]).blocks == 1
            other.abort()
        assert two.lookup(chain) == 2


def test_a_hit_is_the_minimum_over_the_spaces_of_a_client(plane: Plane) -> None:
    ranks = [make.space(rank=rank, world_size=2) for rank in range(2)]
    chain = make.keys(4)
    with attach(plane.socket, ranks, timeout_s=30) as scheduler:
        store(scheduler, chain, space=0)
        assert scheduler.lookup(chain) == 0
        assert len(scheduler.acquire(chain)) == 0
        store(scheduler, chain[:3], space=1)
        assert scheduler.lookup(chain) == 3
        with scheduler.acquire(chain) as lease:
            assert len(lease) == 3
            assert bytes(lease.view(2, space=1)) == contents(chain, PAGE)[2]
        assert len(scheduler.acquire(chain, space=0)) == 4


def test_blocks_larger_than_a_segment_and_more_segments_than_a_datagram_carries(
    make_plane: Callable[..., Plane],
) -> None:
    plane = make_plane(pool_bytes="320MiB").start()
    chain = make.keys(150)
    with connect(plane) as writer, connect(plane, group="reader") as reader:
        with writer.reserve(chain, 2 * make.MIB) as reservation:
            assert reservation.refused == {}
            assert len(reservation.writable) == 150
            reservation.view(149)[:4] = b"last"
            assert reservation.commit().blocks == 150
        with reader.acquire(chain) as lease:
            assert len(lease) == 150
            assert bytes(lease.view(149)[:4]) == b"last"
        with writer.reserve([make.key("big")], 9 * make.MIB) as reservation:
            reservation.view(0)[-1:] = b"!"
            assert reservation.commit().blocks == 1


# ---- many blocks at once


@pytest.mark.parametrize("nbytes", [PAGE, 5000, 100])
def test_many_blocks_are_copied_in_and_out_at_once(shared_plane: Plane, nbytes: int) -> None:
    chain = make.keys(12, ("copies", nbytes))
    whole = b"".join(contents(chain, nbytes))
    with connect(shared_plane) as client:
        store(client, chain[3:5], nbytes)
        with client.reserve(chain, nbytes) as reservation:
            assert len(reservation.writable) == 10
            assert reservation.copy_from(whole) == 10 * nbytes
            assert reservation.commit().blocks == 10
        with client.acquire(chain) as lease:
            target = bytearray(len(whole) + 7)
            assert lease.copy_to(target) == len(whole)
            assert target == whole + bytes(7)
            part = np.zeros((2, nbytes), np.uint8)
            assert lease.copy_to(part, first=4, count=2) == 2 * nbytes
            assert part.tobytes() == whole[4 * nbytes : 6 * nbytes]
            assert lease.copy_to(bytearray(), first=12) == 0


def test_copies_check_their_buffers(shared_plane: Plane) -> None:
    chain = make.keys(2, "buffers")
    with connect(shared_plane) as client:
        with client.reserve(chain, PAGE) as reservation:
            with pytest.raises(ValueError, match="at least 8192 bytes"):
                reservation.copy_from(bytes(2 * PAGE - 1))
            reservation.copy_from(np.zeros(2 * PAGE, np.uint8))
            reservation.commit()
        with pytest.raises(ValueError, match="ended"):
            reservation.copy_from(bytes(2 * PAGE))
        with client.acquire(chain) as lease:
            with pytest.raises(ValueError, match="at least 8192 bytes"):
                lease.copy_to(bytearray(2 * PAGE - 1))
            with pytest.raises(ValueError, match="writable"):
                lease.copy_to(bytes(2 * PAGE))  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="contiguous"):
                lease.copy_to(np.zeros(4 * PAGE, np.uint8)[::2])
            for first, count in ((0, 3), (-1, 1), (3, None), (1, -1)):
                with pytest.raises(IndexError):
                    lease.copy_to(bytearray(4 * PAGE), first=first, count=count)
        with pytest.raises(ValueError, match="released"):
            lease.copy_to(bytearray(2 * PAGE))


# ---- leases


def test_a_leased_block_survives_pressure_and_goes_when_it_is_released(plane: Plane) -> None:
    chain = make.keys(1, "held")
    with connect(plane) as client:
        store(client, chain, make.MIB)
        lease = client.acquire(chain)
        fill(client)
        assert client.lookup(chain) == 1
        assert bytes(lease.view(0)) == contents(chain, make.MIB)[0]
        lease.release()
        fill(client)
        assert client.lookup(chain) == 0


DERIVED: dict[str, Callable[[Lease], object]] = {
    "memoryview": lambda lease: lease.array(0).data,
    "slice": lambda lease: lease.array(0)[10:20].view(np.int8)[::2],
    "slice of a memoryview": lambda lease: lease.array(0).data[5:9],
}


def keeps_its_block(client: Client, name: str, derive: Callable[[Lease], object]) -> None:
    """Assert that what is derived from a lease keeps the block after the release until it is collected."""
    chain = make.keys(1, name)
    store(client, chain, make.MIB)
    lease = client.acquire(chain)
    derived = derive(lease)
    lease.release()
    del lease
    gc.collect()
    fill(client)
    assert client.lookup(chain) == 1, f"the {name} is alive"
    del derived
    gc.collect()
    fill(client)
    assert client.lookup(chain) == 0, name


def test_whatever_is_derived_from_a_view_keeps_its_block_until_it_is_collected(plane: Plane) -> None:
    with connect(plane) as client:
        for name, derive in DERIVED.items():
            keeps_its_block(client, name, derive)


def test_tensors_keep_their_block_too(plane: Plane) -> None:
    torch = pytest.importorskip("torch")

    def of_an_array(lease: Lease) -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(lease.array(0)).view(torch.int32)[1:]

    def of_the_lease(lease: Lease) -> object:
        tensor = lease.tensor(0, torch.int16, (2, make.MIB // 4))
        assert bytes(tensor.view(torch.uint8).flatten()[:32].tolist()) == make.key(("tensor", 0))
        return tensor

    with connect(plane) as client:
        keeps_its_block(client, "tensor of an array", of_an_array)
        keeps_its_block(client, "tensor", of_the_lease)


def test_views_of_a_lease_are_read_only(plane: Plane) -> None:
    with connect(plane) as client:
        store(client, make.keys(1))
        with client.acquire(make.keys(1)) as lease:
            with pytest.raises(TypeError):
                lease.view(0)[0] = 1
            array = lease.array(0)
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True


def test_a_read_only_space_is_mapped_read_only_and_takes_no_store(plane: Plane) -> None:
    chain = make.keys(2)
    events: list[ClientEvent] = []
    with connect(plane) as writer:
        store(writer, chain)
        reader = attach(plane.socket, [SpaceRequest(make.space(), writes=False)], timeout_s=30, on_event=events.append)
        with reader, reader.acquire(chain) as lease:
            assert len(lease) == 2
            address = lease.array(0).ctypes.data
            assert protection_of(address) == "r--s"
            refused = reader.reserve(make.keys(1, "new"), PAGE)
            assert refused.refused == {Code.READ_ONLY_SPACE: 1}
    assert [event.name for event in events] == ["attached", "reserve_refused"]


def protection_of(address: int) -> str:
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < end:
                return line.split()[1]
    return "unmapped"


def test_leases_that_outlive_their_client_hold_their_bytes(plane: Plane) -> None:
    chain = make.keys(1, "held")
    client = connect(plane)
    store(client, chain, make.MIB)
    lease = client.acquire(chain)
    client.close()
    with connect(plane, group="other") as other:
        fill(other)
        assert other.lookup(chain) == 1
        assert bytes(lease.view(0)) == contents(chain, make.MIB)[0]


def test_a_closed_client_leaves_nothing_behind(plane: Plane) -> None:
    with connect(plane) as client:
        client.acquire(make.keys(1))
    stats = plane.wait_stats(lambda stats: not stats.engines, "the engine is gone")
    assert stats.pool.reserved_bytes == 0
    assert client.lookup(make.keys(1)) == 0
    assert not client.connected
    assert client.reserve(make.keys(1), PAGE).refused == {Code.UNAVAILABLE: 1}
    client.close()


def test_bytes_of_an_open_reservation_are_not_reused_when_its_client_is_closed(plane: Plane) -> None:
    client = connect(plane)
    reservation = client.reserve(make.keys(2), PAGE)
    view = reservation.view(0)
    client.close()
    stats = plane.wait_stats(lambda stats: not stats.pool.reserved_bytes, "the end is noticed")
    assert stats.pool.quarantined_bytes == 2 * PAGE, "the engine may still write there"
    view[:1] = b"x"
    assert reservation.commit().blocks == 0


def test_a_partial_commit_returns_the_refused_blocks_and_reasons(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(pool_bytes="4MiB").start()
    with connect(plane) as client, client.reserve(make.keys(6), make.MIB) as reservation:
        granted = len(reservation.writable)
        assert 0 < granted < 6
        result = reservation.commit()
    assert (result.blocks, result.code) == (granted, None)
    assert result.refused_blocks == dict.fromkeys(range(granted, 6), Code.POOL_FULL)
    assert result.refused == reservation.refused == {Code.POOL_FULL: 6 - granted}
    assert repr(result) == f"CommitResult(blocks={granted}, code=None, refused={{POOL_FULL: {6 - granted}}})"


def test_blocks_that_are_there_already_or_on_their_way_were_not_refused() -> None:
    others = bytes((ReserveOutcome.PRESENT, ReserveOutcome.BUSY, ReserveOutcome.WRITE))
    assert CommitResult(1, None, others).refused_blocks == {}
    assert repr(CommitResult(1, None, others)) == "CommitResult(blocks=1, code=None)"


# ---- arguments


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.reserve([], PAGE),
        lambda client: client.reserve(make.keys(MAX_KEYS_PER_REQUEST + 1), PAGE),
        lambda client: client.reserve(make.keys(1), 0),
        lambda client: client.reserve(make.keys(1), -1),
        lambda client: client.reserve(make.keys(1), 2**70),
        lambda client: client.reserve(make.keys(1), PAGE, tenant="a/b"),
        lambda client: client.reserve(make.keys(1), PAGE, tenant="\ud800"),
        lambda client: client.reserve(make.keys(1), PAGE, space=1),
        lambda client: client.reserve(make.keys(1), PAGE, space=-1),
        lambda client: client.reserve([b"short"], PAGE),
        lambda client: client.lookup([b"short"]),
        lambda client: client.lookup(b"x" * 33),
        lambda client: client.acquire([b"short"]),
        lambda client: client.acquire(make.keys(1), space=1),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_wrong_arguments_raise_value_errors(shared_plane: Plane, there: bool, call: Callable[[Client], object]) -> None:
    path = shared_plane.socket if there else "/nowhere/engine.sock"
    with attach(path, [make.space()], timeout_s=30) as client, pytest.raises(ValueError, match=r"expected|tenant"):
        call(client)


@pytest.mark.parametrize(
    "options",
    [
        {"spaces": []},
        {"spaces": [make.space("")]},
        {"spaces": [make.space(rank=2, world_size=2)]},
        {"timeout_s": 0},
        {"timeout_s": -1},
    ],
)
def test_attach_with_wrong_arguments_raises_value_errors(shared_plane: Plane, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"expected|positive"):
        attach(shared_plane.socket, **{"spaces": [make.space()], **options})  # type: ignore[arg-type]


def test_a_refused_attach_raises_attach_refused(shared_plane: Plane) -> None:
    with attach(shared_plane.socket, [make.space("m", block_bytes=PAGE)], timeout_s=30):
        with pytest.raises(AttachRefused, match="space_conflict") as caught:
            attach(shared_plane.socket, [make.space("m", block_bytes=2 * PAGE)], timeout_s=30)
        assert caught.value.code is Code.SPACE_CONFLICT
    with pytest.raises(AttachRefused) as caught:
        attach(shared_plane.socket, [make.space()], group="x" * 200, timeout_s=30)
    assert (caught.value.code, caught.value.field) == (Code.BAD_GROUP, "group")


def test_wrong_positions_in_a_commit_raise_and_the_reservation_stays_open(shared_plane: Plane) -> None:
    chain = make.keys(3, "wrong positions")
    with connect(shared_plane) as client:
        with client.reserve(chain, PAGE) as reservation:
            for positions in ([3], [-1], [0, 0], [2**32]):
                with pytest.raises(ValueError, match="expected"):
                    reservation.commit(positions)
            for checksums in ([b"short"], [b"x" * 16], [b"x" * 16] * 4):
                with pytest.raises(ValueError, match="expected"):
                    reservation.commit(checksums=checksums)
            assert reservation.commit([0, 1], [b"x" * 16] * 2).blocks == 2
        assert client.lookup(chain) == 2
    shared_plane.wait_stats(lambda stats: stats.pool.reserved_bytes == 0, "nothing stays reserved")


# ---- threads


def test_threads_may_share_a_client(plane: Plane) -> None:
    chains = [make.keys(4, number) for number in range(16)]
    failures: list[BaseException] = []
    with connect(plane) as client:

        def work(seed: int) -> None:
            try:
                for turn in range(60):
                    chain = chains[(seed * 7 + turn) % len(chains)]
                    store(client, chain, 60_000)
                    with client.acquire(chain) as lease:
                        for at in range(len(lease)):
                            assert bytes(lease.view(at)) == contents(chain, 60_000)[at]
            except BaseException as error:  # noqa: BLE001 (a thread's failure is the test's)
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        join(*threads)
        assert failures == []
        gc.collect()
        stats = plane.describe()
        assert stats.pool.reserved_bytes == 0
        assert fill(client) == 48, "no counter leaked"


def test_hits_and_stores_are_counted(plane: Plane) -> None:
    chain = make.keys(4)
    with connect(plane) as client:
        store(client, chain, tenant="a")
        assert client.lookup([*chain, make.key("absent")], tenant="a") == 4
        assert client.lookup(chain, tenant="a", counted=False) == 4
        client.count_lookup(3, 2, tenant="a")
        with client.acquire(chain):
            pass
        stats = plane.wait_stats(lambda stats: stats.totals.read_bytes, "the ring is drained")
    assert (stats.totals.stored_blocks, stats.totals.stored_bytes, stats.totals.read_bytes) == (4, 4 * PAGE, 4 * PAGE)
    (tenant,) = stats.tenants
    assert (tenant.tenant, tenant.requested_blocks, tenant.hit_blocks) == ("a", 5 + 3, 4 + 2)


def test_segments_that_change_hands_cost_no_descriptors_and_no_memory(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(pool_bytes="16MiB").start()
    spaces = [Space(model="a"), Space(model="b")]
    with attach(plane.socket, spaces, timeout_s=30) as engine:
        for number in range(200):
            chain = [make.key(("churn", number))]
            with engine.reserve(chain, make.MIB, space=number % 2) as room:
                room.array(0)[:] = 1
                assert room.commit().blocks == 1
        assert plane.open_fds() < 60
        mine = Path("/proc/self/maps").read_text().count("larder-segment")
        assert mine <= 32, "the engine unmaps what was retired"
    with plane.manager() as manager:
        assert manager.describe().pool.committed_bytes <= 16 * make.MIB
