"""What a data plane goes on with, and what makes its start cold: one line in the log, never a crash."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from dataplane.client import Code
from dataplane.core.journal.recovery_table import (
    B_CAPACITY,
    B_CLIENT,
    B_RESERVATION,
    B_SEGMENT,
    B_SPACE,
    B_TENANT,
    ROW_HITS,
    ROW_RESERVATION,
    ROW_USED,
)
from dataplane.holding import requests
from dataplane.holding.messages import close_all
from dataplane.io.peers import open_process
from dataplane.ipc.processes import start_time
from dataplane.protocol.codec import encode
from dataplane.protocol.control.lookups import ListBlocks
from dataplane.protocol.engine import BlocksCommitted, Commit, Reserve, Reserved
from dataplane.protocol.layout import H_BUCKETS, H_MAGIC, H_VERSION, HOT_WORDS, PAGE, IndexMemory
from dataplane.protocol.states import STATE_MASK, State
from tests.dataplane import blocks
from tests.dataplane import factories as make
from tests.dataplane.blocks import PAGE_BYTES, attached_again, connect, connected, kill, read, store
from tests.dataplane.plane import RawEngine, engine_process, line, wait_for
from tests.dataplane.recovery.support.relay import Relay, hold
from tests.ipc.descriptors import free_descriptors, opened
from tests.sizes import FULL, size
from tests.threads import JOIN_S, join


def test_a_lease_taken_without_a_data_plane_prevents_eviction_after_its_start(plane: Relay) -> None:
    files, others = make.keys(4, "held"), [make.key(number) for number in range(40)]
    with connect(plane) as client:
        store(client, files, make.MIB)
        kill(plane, client)
        lease = client.acquire(files)
        assert len(lease) == 4
        plane.start()
        attached_again(client)
        for each in others:
            store(client, [each], make.MIB)
        assert read(client, files, make.MIB) == 4
        lease.release()
        del lease
        gc.collect()
        for each in others:
            store(client, [each], make.MIB)
        assert client.lookup(files) == 0


def test_a_store_that_was_cut_off_is_refused_and_can_be_done_again(plane: Relay) -> None:
    chain = make.keys(3)
    with connect(plane) as client:
        reservation = client.reserve(chain, PAGE_BYTES)
        kill(plane, client)
        plane.start()
        attached_again(client)
        assert plane.describe().pool.quarantined_bytes == 3 * PAGE_BYTES, "it may still be writing"
        reservation.view(0)[:] = b"x" * PAGE_BYTES
        committed = reservation.commit()
        assert (committed.blocks, committed.code) == (0, Code.RESERVATION_EXPIRED)
        assert plane.describe().pool.used_bytes == 0
        assert store(client, chain) == 3
        assert read(client, chain) == 3


HALF_A_STORE = """
client = attach(sys.argv[1], [make.space()], timeout_s=30)
reservation = client.reserve(make.keys(4, "half"), 4096)
tell("half")
time.sleep(600)
"""


@pytest.mark.parametrize("dies_first", [True, False])
def test_reserved_bytes_of_an_engine_are_freed_when_it_is_gone(plane: Relay, dies_first: bool) -> None:
    with engine_process(HALF_A_STORE, plane.socket) as engine:
        assert line(engine) == "half"
        plane.kill()
        if dies_first:
            engine.kill()
            engine.wait(60)
        plane.start()
        if not dies_first:
            assert plane.describe().pool.quarantined_bytes == 4 * PAGE_BYTES, "it may still be writing"
            engine.kill()
        plane.wait_stats(lambda stats: not stats.engines and stats.pool.used_bytes == 0, "its bytes come back")


# ---- cold starts


@contextmanager
def cold_start(plane: Relay, reason: str) -> Iterator[None]:
    """The block changes what a killed data plane left: the next one serves, holds nothing, and says why."""
    chain = make.keys(5)
    with connect(plane) as client:
        store(client, chain)
        kill(plane, client)
        yield
        before = len(plane.logged("memory.not_adopted"))
        plane.start()
        line = plane.wait_logged("memory.not_adopted", before + 1)[before]
        assert reason in line["reason"], line
        wait_for(lambda: connected(client) and client.lookup(chain) == 0, "the client attaches again")
        assert store(client, chain) == 5
        assert read(client, chain) == 5
        assert plane.describe().adopted_blocks == 0


FOREIGN = [
    ("index", H_VERSION, 1, "index memory has layout 1, expected 2"),
    ("index", H_MAGIC, 7, "not index memory"),
    ("index", H_BUCKETS, 3, "corrupted header"),
    ("books", 1, 1, "the recovery table has layout 1, expected 2"),
    ("books", 3, 5, "belong to different memory"),
    *(
        ("books", word, 2**64 - 1, f"word {word} of the recovery table is {2**64 - 1}, expected less than ")
        for word in (B_CLIENT, B_SEGMENT, B_SPACE, B_TENANT, B_RESERVATION, B_CAPACITY)
    ),
    *(
        ("books", PAGE // 8 + word, 2**64 - 1, f"a row of the recovery table has {2**64 - 1} in word {word}")
        for word in (ROW_USED, ROW_HITS, ROW_RESERVATION)
    ),
    ("names", 1, 9, "the journal has layout 9, expected 2"),
    ("names", PAGE // 8 + 1, 0x1234567812345678, "corrupted record"),
    ("names", PAGE // 8, 0xFFFFFFFF, "a record of"),
]
"""Words of the held memory that are changed, and what the log says of it."""


def test_memory_that_is_not_ours_is_a_cold_start(plane: Relay) -> None:
    for kind, word, value, reason in FOREIGN:
        with cold_start(plane, reason):
            plane.words(kind)[word] = value


def test_rows_that_contradict_each_other_are_a_cold_start(plane: Relay) -> None:
    with cold_start(plane, "two blocks overlap"):
        words = plane.words("index")
        index = IndexMemory.attach(memoryview(words.data).cast("B"))
        live = np.flatnonzero(index.control & np.uint64(STATE_MASK) == State.READY)
        index.hot[live[1], HOT_WORDS - 2] = index.hot[live[0], HOT_WORDS - 2]


def test_any_scribbling_is_survived(plane: Relay) -> None:
    """Not every one is noticed; none keeps the node down."""
    random = np.random.default_rng(5)
    with connect(plane) as client:
        for number in range(6):
            attached_again(client)
            store(client, make.keys(20, number))
            kill(plane, client)
            kind = ("index", "books", "names")[number % 3]
            words = plane.words(kind)
            used = np.flatnonzero(words)
            at = random.choice(used, 40)
            words[at] = random.integers(0, 1 << 63, 40).astype(np.uint64)
            plane.start()
            assert plane.alive


def test_memory_of_a_live_writer_is_not_adopted(plane: Relay) -> None:
    with connect(plane) as client:
        store(client, make.keys(3))
        second = Relay(plane.folder / "second", dict(plane.settings))
        second.folder.mkdir()
        try:
            files = requests.peek(plane.folder)
            hold(second.folder, [each for each in files if each[0] in ("index", "books", "names")])
            close_all([fd for _, _, fd in files])
            with pytest.raises(AssertionError, match=f"process {plane.pid} still writes the memory"):
                second.start()
        finally:
            second.end()
        assert read(client, make.keys(3)) == 3


def test_a_segment_missing_from_the_holder_costs_its_blocks_alone(plane: Relay) -> None:
    with connect(plane) as client:
        store(client, make.keys(2, "small"))
        store(client, make.keys(2, "large"), make.MIB)
        kill(plane, client)
        plane.forget(("segment", 1))
        plane.start()
        attached_again(client)
        assert client.lookup(make.keys(2, "small")) == 0
        assert read(client, make.keys(2, "large"), make.MIB) == 2
        assert [line["blocks"] for line in plane.wait_logged("memory.incomplete")] == [2]


def test_unknown_leases_cause_a_cold_start(plane: Relay) -> None:
    with cold_start(plane, "the area of client 1 is missing, although its process is running"):
        plane.forget(("area", 1))


# ---- what was in force


def test_snapshots_are_in_force_after_a_restart_and_a_corrupt_one_is_set_aside(plane: Relay) -> None:
    chain = make.keys(3, "pinned")
    snapshot, bodies = make.pins([make.pin("p", chain)])
    with plane.manager() as manager:
        manager.push(make.quotas({"a": 8 << 20}, 7))
        manager.push(snapshot, bodies)
    with connect(plane) as client:
        store(client, chain)
    path = plane.folder / "quotas.snapshot"
    wait_for(path.exists, "the quotas are written down")
    wait_for(path.with_name("pins.snapshot").exists, "the pins are written down")
    plane.kill()
    plane.start()
    stats = plane.describe()
    assert stats.armed
    assert (stats.observed["quotas"].generation, stats.observed["pins"].generation) == (7, 1)
    assert [(pin.name, pin.guaranteed) for pin in stats.pins] == [("p", 3)]
    assert {each.tenant: each.limit_bytes for each in stats.tenants}["a"] == 8 << 20
    plane.kill()
    path.write_bytes(path.read_bytes()[:-3] + b"xyz")
    plane.start()
    assert not plane.describe().armed
    assert not path.exists()
    assert path.with_suffix(".corrupt").exists()
    assert len(plane.wait_logged("snapshot.set_aside")) == 1


@pytest.mark.parametrize("free", [0, 1])
def test_a_process_is_not_gone_because_descriptors_are_short(free: int) -> None:
    started, before = start_time(os.getpid()), opened()
    with free_descriptors(free), pytest.raises(OSError, match="Too many open files"):
        open_process(os.getpid(), started)
    assert opened() == before
    with free_descriptors(2):
        pidfd = open_process(os.getpid(), started)
    assert pidfd is not None
    os.close(pidfd)


def test_a_process_whose_number_a_thread_has_now_is_gone() -> None:
    """As after a restart in a container, where numbers are given out again from 1."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait, args=(JOIN_S,))
    thread.start()
    try:
        assert thread.native_id is not None
        assert open_process(thread.native_id, 1) is None
    finally:
        ended.set()
        join(thread)


# ---- journals


TENANTS = size(72_000, 9_000)
PAGE = 4096
LONG = "\U00020000" * 122
AT_ONCE = 64


def salt(number: int) -> str:
    """128 characters, 494 bytes."""
    return f"{LONG}{number:06d}"


def store_blocks_of_tenants(engine: RawEngine, numbers: range) -> int:
    """Store one block for each tenant, many requests ahead of their answers; published blocks."""
    assert engine.attached is not None
    (space,) = engine.attached.spaces
    stored = 0
    for first in range(numbers.start, numbers.stop, AT_ONCE):
        batch = range(first, min(first + AT_ONCE, numbers.stop))
        for number in batch:
            engine.send(encode(Reserve(number, space, salt(number), make.key(number), PAGE)))
        granted = [engine.receive() for _ in batch]
        for answer in granted:
            assert isinstance(answer, Reserved), answer
            assert answer.reservation, f"outcomes {answer.outcomes.hex()}"
            engine.send(encode(Commit(answer.id, answer.reservation, b"")))
        for _ in batch:
            committed = engine.receive()
            assert isinstance(committed, BlocksCommitted), committed
            stored += committed.blocks
    return stored


@pytest.mark.full
@pytest.mark.timeout(900)
def test_seventy_two_thousand_tenants_with_the_longest_salts_live_through_a_kill(
    make_plane: Callable[..., Relay],
) -> None:
    plane = make_plane(
        pool_bytes="320MiB",
        dataplane__max_blocks=str(size(80_000, 10_000)),
        dataplane__tick_s="2",  # periodic work takes long with this many tenants
        dataplane__stats_interval_s="30",
    ).start()
    with RawEngine(plane.socket) as engine:
        engine.attach()
        assert store_blocks_of_tenants(engine, range(TENANTS)) == TENANTS
        before = plane.describe()
        assert (before.pool.blocks, before.refused) == (TENANTS, {})
        assert (0.5 if FULL else 0) < before.id_journal_bytes / before.id_journal_capacity_bytes < 1
        plane.kill()
    plane.start()
    after = plane.describe()
    assert (after.adopted_blocks, after.pool.blocks) == (TENANTS, TENANTS)
    assert after.id_journal_bytes == before.id_journal_bytes
    with connect(plane) as client:
        for number in range(0, TENANTS, 1000):
            with client.acquire([make.key(number)], tenant=salt(number)) as lease:
                assert len(lease) == 1
    with plane.manager() as manager:
        listed = manager.ask(ListBlocks("n", tenant=salt(TENANTS - 1), after=TENANTS - 100))
    assert [block.key for block in listed.blocks] == [make.key(TENANTS - 1).hex()]
    with RawEngine(plane.socket) as engine:
        engine.attach()
        assert store_blocks_of_tenants(engine, range(TENANTS, TENANTS + 10)) == 10


def test_a_smaller_journal_of_an_older_release_is_adopted(make_plane: Callable[..., Relay]) -> None:
    plane = make_plane(pool_bytes="128MiB", dataplane__max_blocks="32768")
    plane.fault = "small_journal"
    plane.start()
    with connect(plane) as client:
        assert blocks.store(client, make.keys(4), tenant="acme") == 4
        old = len(plane.words("names")) * 8
        kill(plane, client)
        assert client.lookup(make.keys(4)) == 4
        plane.fault = ""
        plane.start()
        attached_again(client)
        stats = plane.describe()
        assert (stats.adopted_blocks, [tenant.tenant for tenant in stats.tenants]) == (4, ["acme"])
        (line,) = plane.wait_logged("names.migrated")
        new = len(plane.words("names")) * 8
        assert (line["from_bytes"], line["to_bytes"]) == (old, new)
        assert new > old
        assert blocks.store(client, make.keys(4, "more"), tenant="other") == 4
    plane.kill()
    plane.start()
    stats = plane.describe()
    assert (stats.adopted_blocks, sorted(each.tenant for each in stats.tenants)) == (8, ["acme", "other"])
