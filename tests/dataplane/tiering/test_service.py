"""Tiers that hang or fail while they are opened or closed: the loop goes on, and a change takes effect."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dataplane.core.tiering.invalidations import Tombstone
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.spaces import Space
from dataplane.protocol.stats.tiers import TierStats
from dataplane.protocol.stored_blocks import BlockName, Outcome, StoredBlock, writer_number
from dataplane.protocol.tiers import TierSpec
from dataplane.tiering import known_spaces, listing, opening, service, tombstones
from dataplane.tiering.known_spaces import FILE as SPACES_FILE
from dataplane.tiering.known_spaces import KnownSpaces
from dataplane.tiering.service import TierService
from dataplane.tiering.tombstones import FILE, MAX_LISTS, UNKNOWN, TombstoneFile
from dataplane.tiers.registry import TierContext
from dataplane.tiers.tier import Tier, TierError
from tests.dataplane.tiering.faulty_tier import FaultyTier
from tests.dataplane.tiering.mover_bench import LoopBench
from tests.threads import join
from tests.tiers.blocks import assert_lacks, block, store
from tests.tiers.disk_backend import DiskBackend
from tests.tiers.erasure_cache import ErasureCache


class ServiceBench(LoopBench):
    """A node without engines, whose tiers are opened by `openers`, by type."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(4 << 20)
        self.openers: dict[str, Callable[[TierContext], Tier]] = {}
        self.service = TierService(self.loop, self.node, self.memory, time.time, folder, "test", [], listed_blocks=4096)

    def open(self, name: str, parameters: object, context: TierContext) -> Tier:
        return self.openers[name](context)

    def apply(self, *specs: TierSpec) -> None:
        self.service.apply(specs, time.time())

    def serve(self, tier: Tier, **fields: Any) -> None:
        """Apply a record of this tier, and wait until it is in service."""
        self.openers["good"] = lambda context: tier
        self.apply(spec(**fields))
        self.until(lambda: self.stats().serves)

    def stats(self, name: str = "t") -> TierStats:
        return next(each for each in self.service.stats() if each.name == name)

    def close(self) -> None:
        self.service.close(time.time())
        join(*(thread for thread in threading.enumerate() if thread.name.startswith("larder-tier-")))
        super().close()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceBench]:
    bench = ServiceBench(tmp_path)
    monkeypatch.setattr(opening, "open_tier", bench.open)
    monkeypatch.setattr(opening, "BUSY_S", 0.0)
    yield bench
    bench.close()


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def spec(name: str = "t", **fields: object) -> TierSpec:
    return TierSpec(name=name, **{"type": "good", "budget_bytes": 1 << 20, **fields})  # type: ignore[arg-type]


def stored(number: int, tenant: str = "", sequence: int = 5) -> StoredBlock:
    name = BlockName(b"s" * 16, number.to_bytes(32, "little"))
    return StoredBlock(name, tenant, sequence, 4096, b"c" * 16)


def holding(*blocks: StoredBlock) -> FaultyTier:
    tier = FaultyTier()
    tier.stored = {block.name: (block, bytes(block.length)) for block in blocks}
    return tier


def test_a_tier_that_hangs_while_it_opens_delays_no_other_and_can_be_replaced(
    bench: ServiceBench, go_on: threading.Event
) -> None:
    late, good = FaultyTier(), FaultyTier()

    def hang(context: TierContext) -> Tier:
        go_on.wait(60)
        return late

    bench.openers = {"hangs": hang, "good": lambda context: good}
    bench.apply(spec(type="hangs"), spec("other"))
    bench.until(lambda: bench.stats("other").serves)
    assert (bench.stats().state, bench.stats().serves) == ("opening", False)
    bench.openers["good"] = lambda context: FaultyTier()
    bench.apply(spec(type="good"), spec("other"))
    bench.until(lambda: bench.stats().serves)
    go_on.set()
    bench.until(lambda: late.closed)
    assert bench.stats().serves


def test_a_tier_that_hangs_while_it_closes_keeps_its_number(bench: ServiceBench, go_on: threading.Event) -> None:
    tier = FaultyTier()

    def close() -> None:
        go_on.wait(60)
        tier.closed = True

    tier.close = close  # type: ignore[method-assign]
    bench.serve(tier)
    bench.apply()
    assert bench.stats().state == "closing"
    bench.openers["good"] = lambda context: FaultyTier()
    bench.apply(*(spec(str(number)) for number in range(8)))
    bench.until(lambda: sum(each.serves for each in bench.service.stats()) == 7)
    waiting = next(each for each in bench.service.stats() if not each.serves and each.name != "t")
    bench.until(lambda: "closed" in bench.stats(waiting.name).reason)
    go_on.set()
    bench.until(lambda: sum(each.serves for each in bench.service.stats()) == 8)
    assert tier.closed


@pytest.mark.parametrize("replaced", [False, True])
def test_a_tier_that_is_closed_while_it_is_resized_stays_closed(
    bench: ServiceBench, go_on: threading.Event, *, replaced: bool
) -> None:
    tier = FaultyTier()
    resizing = threading.Event()

    def resize(budget_bytes: int) -> bool:
        resizing.set()
        go_on.wait(60)
        return False

    tier.resize = resize  # type: ignore[method-assign]
    bench.serve(tier)
    bench.apply(spec(budget_bytes=2 << 20))
    assert resizing.wait(60)
    bench.openers["good"] = lambda context: FaultyTier()
    bench.apply(*([spec(parameters={"elsewhere": 1})] if replaced else []))
    go_on.set()
    bench.until(lambda: tier.closed and len(bench.service.stats()) == replaced)
    bench.until(lambda: all(stats.serves for stats in bench.service.stats()))


def test_a_tier_that_fails_to_open_is_tried_again(bench: ServiceBench) -> None:
    attempts: list[int] = []

    def fail(context: TierContext) -> Tier:
        attempts.append(1)
        if len(attempts) < 2:
            raise TierError("no such disk")
        return FaultyTier()

    bench.openers["good"] = fail
    bench.apply(spec())
    bench.until(lambda: bench.stats().reason == "no such disk")
    assert bench.stats().state == "not opened"
    bench.until(lambda: bench.stats().serves)
    assert (bench.stats().reason, bench.stats().state) == ("", "in service")


def test_blocks_invalidated_while_a_tier_opens_are_not_served(bench: ServiceBench, go_on: threading.Event) -> None:
    surviving, dead = stored(1, "kept"), stored(2, "acme")
    tier = holding(surviving, dead)
    read = list(tier.blocks())

    def blocks(deadline: float = inf) -> Iterator[StoredBlock]:
        yield from read
        go_on.wait(60)

    tier.blocks = blocks  # type: ignore[method-assign]
    bench.openers["good"] = lambda context: tier
    bench.apply(spec())
    bench.node.invalidate(Scope(tenant="acme"), time.time())
    go_on.set()
    bench.until(lambda: bench.stats().serves)
    assert bench.stats().blocks == 1
    bench.until(lambda: set(tier.stored) == {surviving.name})


def test_a_tier_that_comes_back_gets_the_invalidations_that_it_missed(bench: ServiceBench) -> None:
    tier = holding(stored(1, "acme"), stored(2, "kept"))
    bench.serve(tier)
    bench.apply()
    bench.until(lambda: tier.closed)
    bench.until(lambda: not bench.service.stats())
    bench.node.invalidate(Scope(tenant="acme"), time.time())
    bench.apply(spec())
    bench.until(lambda: bench.stats().serves)
    assert bench.stats().blocks == 1
    bench.until(lambda: len(tier.stored) == 1)


def test_a_smaller_budget_evicts_until_it_holds(bench: ServiceBench) -> None:
    tier = holding(*(stored(number, sequence=number + 1) for number in range(100)))
    bench.serve(tier)
    assert bench.stats().blocks == 100
    bench.apply(spec(budget_bytes=20 * 8192))
    bench.until(lambda: bench.stats().stored_bytes <= 20 * 8192)
    bench.until(lambda: len(tier.stored) == 20)
    assert min(block.sequence for block, _ in tier.stored.values()) == 81, "the oldest were given up"


def test_tombstones_are_kept_for_each_tier_until_it_has_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "MAX_SIZE", 8)
    file = TombstoneFile(tmp_path)
    assert not file.knows_tiers
    file.of("a"), file.of("b")
    file.add(Tombstone(before=5))
    file.clear("a")
    assert (tmp_path / "tombstones").stat().st_mode & 0o777 == 0o600
    again = TombstoneFile(tmp_path)
    assert (again.of("a"), [each.before for each in again.of("b")]) == ([], [5])
    for number in range(8):
        again.add(Tombstone(before=10 + number, tenant="x"))
    assert len(again.of("a")) == 8
    assert again.of("b") == [Tombstone(before=5), Tombstone(before=17, tenant="x")]


def test_the_file_has_a_bounded_number_of_lists_and_forgets_no_invalidation(tmp_path: Path) -> None:
    file = TombstoneFile(tmp_path, in_use=lambda: {"used"})
    file.of("used"), file.of("first")
    file.add(Tombstone(before=5, tenant="acme"))
    for number in range(3 * MAX_LISTS):
        file.of(f"other-{number}")
        file.add(Tombstone(before=10 + number, tenant="acme"))
    again = TombstoneFile(tmp_path, in_use=lambda: {"used"})
    assert len(again._lists) <= MAX_LISTS + 1, "and the list of the tiers that it does not name"
    assert len(again.of("used")) == 3 * MAX_LISTS + 1
    last = 10 + 3 * MAX_LISTS - 1
    assert max(each.before for each in again.of("first")) == last, "its invalidations are still in force"
    assert max(each.before for each in again.of("new")) == last


def test_a_change_counts_as_written_when_the_thread_has_written_it(tmp_path: Path) -> None:
    begun: list[tuple[Callable[[], None], Callable[[object], None]]] = []
    file = TombstoneFile(tmp_path, lambda work, done: begun.append((work, done)))
    written: list[str] = []
    file.when_written(lambda: written.append("nothing"))
    file.of("a")
    file.add(Tombstone(before=5))
    file.when_written(lambda: written.append("first"))
    file.add(Tombstone(before=6))
    file.when_written(lambda: written.append("second"))
    assert (written, TombstoneFile(tmp_path).knows_tiers) == (["nothing"], False)
    for expected in ([], [5, 6]):  # one write after the other, each with all changes before it
        work, done = begun.pop()
        assert begun == []
        work()
        assert [each.before for each in TombstoneFile(tmp_path).of("a")] == expected
        done(None)
    assert written == ["nothing", "first", "second"]
    file.clear("a")
    file.close()
    assert TombstoneFile(tmp_path).of("a") == []
    begun.pop()[0]()  # a write that begins late does not bring the older state back
    assert TombstoneFile(tmp_path).of("a") == []


def test_an_invalidation_is_recorded_off_the_loop_before_it_is_acknowledged(
    bench: ServiceBench, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = holding(stored(1, "acme"))
    bench.serve(tier)
    writers: list[threading.Thread] = []
    sync = os.fsync

    def fsync(fd: int) -> None:
        writers.append(threading.current_thread())
        go_on.wait(60)
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    bench.node.invalidate(Scope(tenant="acme"), time.time())
    acknowledged: list[bool] = []
    bench.node.when_recorded(lambda: acknowledged.append(True))
    bench.until(lambda: writers)
    assert not acknowledged
    go_on.set()
    bench.until(lambda: acknowledged)
    assert threading.current_thread() not in writers


class SyncedTier(FaultyTier):
    """A tier whose syncs wait for `go_on`, and end as the test says."""

    def __init__(self, *outcomes: Outcome) -> None:
        super().__init__()
        self._outcomes = iter(outcomes)
        self.threads: list[threading.Thread] = []
        """Thread of each sync."""

    def sync(self, deadline: float) -> Outcome:
        self.threads.append(threading.current_thread())
        self.go_on.wait(60)
        return next(self._outcomes)


def _tombstones(bench: ServiceBench) -> list[Tombstone]:
    return bench.service._tombstones.of(service._store_of(spec()))


def test_tombstones_stay_until_a_thread_has_synced_the_deletions_that_they_cover(bench: ServiceBench) -> None:
    tier = SyncedTier(Outcome.OK, Outcome.LATE, Outcome.OK)
    tier.stored = holding(stored(1, "acme"), stored(2, "other")).stored
    bench.serve(tier)
    bench.node.invalidate(Scope(tenant="acme"), time.time())
    bench.until(lambda: tier.threads)
    assert threading.current_thread() not in tier.threads
    bench.node.invalidate(Scope(tenant="other"), time.time())
    bench.until(lambda: not tier.stored)
    assert len(_tombstones(bench)) == 2
    tier.go_on.set()
    bench.until(lambda: not _tombstones(bench))
    assert len(tier.threads) == 3, "the first missed what was deleted after it, and the second came late"


def test_tombstones_stay_after_a_failed_sync_until_the_tier_is_opened_again(bench: ServiceBench) -> None:
    tier = SyncedTier(Outcome.FAILED)
    tier.go_on.set()
    tier.stored = holding(stored(1, "acme")).stored
    bench.serve(tier)
    bench.node.invalidate(Scope(tenant="acme"), time.time())
    bench.until(lambda: tier.threads and not tier.stored)
    assert bench.service._mover is not None
    for _ in range(20):
        bench.service._mover.step()
    assert (len(tier.threads), len(_tombstones(bench))) == (1, 1)
    bench.apply()
    bench.until(lambda: tier.closed)
    bench.until(lambda: not bench.service.stats())
    bench.serve(FaultyTier())
    bench.until(lambda: not _tombstones(bench))


def test_invalidated_blocks_of_a_disk_do_not_come_back_after_a_loss_of_power(
    bench: ServiceBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ErasureCache(monkeypatch)
    backend = DiskBackend(tmp_path / "disk", direct_io="off")
    tier = backend.open()
    blocks = [block(number, 5000) for number in range(1, 4)]
    store(tier, *blocks)
    bench.serve(tier)
    bench.node.invalidate(Scope(tenant="acme"), time.time())
    bench.until(lambda: tier.usage().blocks == 0 and not _tombstones(bench))
    bench.apply()
    bench.until(lambda: not bench.service.stats())
    cache.lose_power()
    again = backend.scanned()
    assert_lacks(again, blocks)
    again.close()


class ListedTier(FaultyTier):
    """A shared tier that lists what the test tells it, one attempt after the other."""

    def __init__(self, *attempts: Iterator[StoredBlock]) -> None:
        super().__init__()
        self._attempts = iter(attempts)

    def blocks(self, deadline: float = inf) -> Iterator[StoredBlock]:
        return next(self._attempts)


def _breaks_after(*blocks: StoredBlock) -> Iterator[StoredBlock]:
    yield from blocks
    raise TierError("the server is gone")


@pytest.fixture
def shared(bench: ServiceBench, monkeypatch: pytest.MonkeyPatch) -> ServiceBench:
    for module in (opening, service):
        monkeypatch.setattr(module, "is_shared", lambda name: True)
    monkeypatch.setattr(listing, "FIRST_WAIT_S", 0.0)
    return bench


def written(*numbers: int) -> list[StoredBlock]:
    return [msgspec.structs.replace(stored(number), writer=writer_number("bench")) for number in numbers]


def test_a_shared_tier_serves_during_its_listing_and_reports_its_progress(
    shared: ServiceBench, go_on: threading.Event
) -> None:
    def slow() -> Iterator[StoredBlock]:
        yield from written(*range(listing.PAGE_BLOCKS))
        go_on.wait(60)
        yield from written(*range(listing.PAGE_BLOCKS, listing.PAGE_BLOCKS + 3))

    shared.openers["good"] = lambda context: ListedTier(slow())
    shared.apply(spec(budget_bytes=16 << 20))
    shared.until(lambda: shared.stats().listed_blocks == listing.PAGE_BLOCKS)
    assert (shared.stats().serves, shared.stats().blocks) == (True, listing.PAGE_BLOCKS)
    go_on.set()
    shared.until(lambda: shared.stats().listed_blocks is None)
    assert shared.stats().stored_bytes == (listing.PAGE_BLOCKS + 3) * 2 * 4096


def test_a_list_that_breaks_off_is_tried_again_and_counts_no_block_twice(shared: ServiceBench) -> None:
    shared.openers["good"] = lambda context: ListedTier(
        _breaks_after(*written(*range(300))), iter(written(*range(305)))
    )
    faults: set[str] = set()
    shared.apply(spec(budget_bytes=16 << 20))

    def complete() -> bool:
        stats = shared.service.stats()[0]
        faults.add(stats.listing_fault)
        return stats.serves and stats.listed_blocks is None

    shared.until(complete)
    assert (shared.stats().blocks, shared.stats().listing_fault) == (305, "")
    assert "the server is gone" in faults


def test_a_list_without_an_end_is_given_up_at_a_number_of_blocks(
    shared: ServiceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_LISTED", 1000)
    monkeypatch.setattr(listing, "FIRST_WAIT_S", 3600.0)
    endless = (block for number in itertools.count() for block in written(number))
    shared.openers["good"] = lambda context: ListedTier(endless)
    shared.apply(spec(budget_bytes=64 << 20))
    shared.until(lambda: shared.service.stats()[0].listing_fault)
    assert shared.stats().listing_fault == "the tier lists more than 1,000 blocks of this node"
    assert shared.stats().serves
    assert shared.stats().blocks <= 1000 + listing.PAGE_BLOCKS


def test_a_tier_that_is_removed_while_it_is_listed_is_closed(shared: ServiceBench, go_on: threading.Event) -> None:
    def hang() -> Iterator[StoredBlock]:
        go_on.wait(60)
        yield from written(1)

    tier = ListedTier(hang())
    shared.serve(tier)
    shared.apply()
    shared.until(lambda: tier.closed)
    go_on.set()
    shared.until(lambda: not shared.service.stats())


def test_a_damaged_file_of_tombstones_covers_all_that_tiers_may_hold(tmp_path: Path) -> None:
    for data in (b"", b"\xff", b"nonsense", b"\x81\xa1\xff\x90", b"\x81\xa1a\x91\x81\xa1z" + b"\x91" * 200_000):
        (tmp_path / FILE).write_bytes(data)
        before = (tmp_path / FILE).stat().st_mtime_ns
        file = TombstoneFile(tmp_path)
        (tombstone,) = file.of("any")
        assert file._lists[UNKNOWN] == [tombstone]
        assert tombstone.covers(stored(1))
        assert tombstone.before == before


# ---- spaces in the state directory


def at_once(work: Callable[[], None], done: Callable[[object], None]) -> None:
    work()
    done(None)


def identity(number: int) -> bytes:
    return number.to_bytes(16, "little")


def test_spaces_are_there_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_spaces, "MAX_SPACES", 3)
    spaces = KnownSpaces(tmp_path, at_once)
    assert spaces.spaces == {}
    for number in range(5):
        spaces.add(identity(number), Space(f"model {number}"))
    assert (tmp_path / SPACES_FILE).stat().st_mode & 0o777 == 0o600
    newest = {identity(number): Space(f"model {number}") for number in (2, 3, 4)}
    assert KnownSpaces(tmp_path, at_once).spaces == spaces.spaces == newest


def test_one_write_follows_the_other(tmp_path: Path) -> None:
    running: list[tuple[Callable[[], None], Callable[[object], None]]] = []
    spaces = KnownSpaces(tmp_path, lambda work, done: running.append((work, done)))
    for number in range(3):
        spaces.add(identity(number), Space("m"))
    for written in (1, 3):
        ((work, done),) = running
        running.clear()
        work()
        done(None)
        assert len(KnownSpaces(tmp_path, at_once).spaces) == written
    assert running == []


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    for data in (b"", b"\xff", b"\x93\x01\x02\x03", b"\x81\xc4\x01a\x05", b"\x81\xc4\x01a\xa1\xff"):
        (tmp_path / SPACES_FILE).write_bytes(data)
        spaces = KnownSpaces(tmp_path, at_once)
        assert spaces.spaces == {}
        spaces.add(identity(1), Space("m"))
        assert KnownSpaces(tmp_path, at_once).spaces == {identity(1): Space("m")}


def test_a_folder_that_takes_no_file_does_no_harm(tmp_path: Path) -> None:
    spaces = KnownSpaces(tmp_path / "missing", at_once)
    spaces.add(identity(1), Space("m"))
    assert spaces.spaces == {identity(1): Space("m")}


def test_a_file_of_an_older_release_has_only_models(tmp_path: Path) -> None:
    (tmp_path / SPACES_FILE).write_bytes(msgspec.msgpack.encode({identity(1): "m", identity(2): "n"}))
    spaces = KnownSpaces(tmp_path, at_once)
    assert (spaces.models, spaces.spaces) == ({identity(1): "m", identity(2): "n"}, {})
    spaces.add(identity(1), Space("m", block_bytes=4096))
    again = KnownSpaces(tmp_path, at_once)
    assert again.models == {identity(1): "m", identity(2): "n"}
    assert again.spaces == {identity(1): Space("m", block_bytes=4096)}
