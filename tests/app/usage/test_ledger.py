"""The ledger: whatever order, gap, restart or repetition numbers come with, each use is counted once."""

import dataclasses
import itertools
import random

import msgspec
import pytest
import sqlalchemy as sa
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from app import runtime
from app.errors import StoreUnavailable
from app.ingest.usage import HOUR_S, PendingUsage
from app.services.usage.ledger import UsageLedger
from app.settings import Settings
from app.store.base.database import Database
from app.store.usage import ledger
from app.store.usage.ledger import (
    COUNTERS,
    TIER_COUNTERS,
    ReportedUsage,
    TierUsageMarkRow,
    TierUsageRow,
    UsageMark,
    UsageMarkRow,
    UsageRow,
    counted,
)
from dataplane.protocol.usage import OTHERS, TierUsageCounters, UsageCounters
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane, serving
from tests.sizes import size

pytestmark = pytest.mark.anyio
SPACE = "f" * 32
NOON = 1_700_000_000 // HOUR_S * HOUR_S


def counters(number: int = 1, tenant: str = "a", served: int = 0, model: str = "m", **more: int) -> UsageCounters:
    names = ("held_kib_s", "stored_blocks", "stored_bytes", "evicted_blocks", "evicted_bytes")
    kib_s, stored, stored_bytes, evicted, evicted_bytes = (more.get(name, 0) for name in names)
    refused = {"pool_full": more["refused"]} if "refused" in more else {}
    return UsageCounters(
        number, tenant, model, SPACE, kib_s, 2 * served, served, stored, stored_bytes, evicted, evicted_bytes, refused
    )  # fmt: skip


def reported(served: int, *, epoch: str = "one", number: int = 1, at: float = 1.0, tenant: str = "a") -> ReportedUsage:
    counts = tuple(served if name == "served_tokens" else 0 for name in COUNTERS)
    return ReportedUsage("node", epoch, number, tenant, "m", SPACE, at, counts)


def mark(each: ReportedUsage) -> UsageMark:
    return UsageMark(each.epoch, each.number, each.at, each.counts)


def served_of(counts: tuple[int, ...] | None) -> int | None:
    return None if counts is None else counts[COUNTERS.index("served_tokens")]


def test_usage_that_was_not_counted_yet_is_counted() -> None:
    known = mark(reported(5))
    assert served_of(counted(reported(5), None)) == 5
    assert served_of(counted(reported(8, at=2), known)) == 3
    assert served_of(counted(reported(5, at=2), known)) == 0
    assert served_of(counted(reported(2, at=2), known)) == 0, "the counter wrapped around"
    assert served_of(counted(reported(4, epoch="two", at=2), known)) == 4, "another process"
    assert served_of(counted(reported(4, number=2, at=2), known)) == 4, "a later account"
    late = mark(reported(5, number=2, at=2))
    assert counted(reported(4, epoch="zero", at=1), late) is None
    assert counted(reported(4, number=1, at=3), late) is None
    assert counted(reported(4, number=2, at=1), late) is None


def test_of_each_hour_the_last_numbers_wait_and_the_same_ones_wait_once() -> None:
    waiting = PendingUsage()
    for served, at in ((1, NOON + 1), (2, NOON + 2), (2, NOON + HOUR_S + 1), (3, NOON + HOUR_S + 2)):
        waiting.begin("node")
        waiting.take("node", "one", [counters(served=served)], at)
        waiting.end("node")
    out = waiting.take_all()
    assert [(hour - NOON, served_of(each.counts)) for hour, each in out] == [(0, 2), (HOUR_S, 3)]
    assert waiting.take_all() == []


def test_unwritten_usage_waits_behind_newer_usage() -> None:
    waiting = PendingUsage()
    waiting.take("node", "one", [counters(served=1)], NOON)
    failed = waiting.take_all()
    waiting.take("node", "one", [counters(served=4)], NOON + 5)
    waiting.put_back(failed)
    assert [served_of(each.counts) for _, each in waiting.take_all()] == [4]


def test_very_many_waiting_numbers_lose_their_hours_and_nothing_else() -> None:
    waiting = PendingUsage(max_accounts=3)
    for hour in range(4):
        waiting.take("node", "one", [counters(n, served=hour + n) for n in (1, 2)], NOON + hour * HOUR_S)
    out = waiting.take_all()
    assert len(out) <= 4
    assert {served_of(each.counts) for hour, each in out if hour == NOON + 3 * HOUR_S} == {4, 5}


@pytest.mark.parametrize(
    "wrong",
    [
        counters(served=2**63),
        counters(served=-1),
        counters(tenant="a/b"),
        counters(tenant="a" * 129),
        counters(model="m\0"),
        counters(model=""),
        counters(refused=-1),
        counters(refused=2**64 - 1),
    ],
)
def test_invalid_numbers_and_names_are_left_out(wrong: UsageCounters) -> None:
    waiting = PendingUsage()
    assert waiting.take("node", "one", [wrong, counters(2, "_default", 1), counters(3, OTHERS, 1)], NOON) == 1
    assert [each.tenant for _, each in waiting.take_all()] == ["", OTHERS]


async def rows_of(database: Database) -> dict[tuple[str, str, int], dict[str, int]]:
    """Sums by node, tenant and hour."""
    async with database.read() as session:
        rows = (await session.scalars(sa.select(UsageRow))).all()
    return {(r.node, r.tenant, r.hour): {name: getattr(r, name) for name in COUNTERS} for r in rows}


async def test_the_rows_are_the_sum_of_all_increments(database: Database) -> None:
    rng = random.Random(5)
    truth: dict[tuple[str, str], list[int]] = {}
    now: dict[tuple[str, str, int, str], list[int]] = {}
    waiting = PendingUsage()
    epochs = {"n1": 0, "n2": 0}
    numbers: dict[tuple[str, str], int] = {}
    fresh = itertools.count(1)
    at = float(NOON)
    unsent: list[tuple[int, ReportedUsage]] = []
    for step in range(300):
        at += rng.choice((1, 30, 4000))
        node, tenant = rng.choice(("n1", "n2")), rng.choice("abc")
        epoch = f"{node}-{epochs[node]}"
        number = numbers.setdefault((node, tenant), next(fresh))
        new = [rng.randrange(1000) for _ in COUNTERS]
        account = now.setdefault((node, epoch, number, tenant), [0] * len(COUNTERS))
        for i, value in enumerate(new):
            account[i] += value
            truth.setdefault((node, tenant), [0] * len(COUNTERS))[i] += value
        # Reports are totals: some readings are missed, all accounts of the process come with the next.
        last = step == 299 or rng.random() < 0.1
        for name in epochs if last else (node,):
            if last or rng.random() < 0.7:
                of_node = [
                    UsageCounters(n, t, "m", SPACE, c[0], c[1], c[2], c[3], c[4], c[5], c[6], {"full": c[7]}, c[8])
                    for (each, e, n, t), c in now.items()
                    if each == name and e == f"{name}-{epochs[name]}" and n == numbers[name, t]
                ]
                waiting.begin(name)
                assert waiting.take(name, f"{name}-{epochs[name]}", of_node, at) == 0
                waiting.end(name)
        if last and rng.random() < 0.5:
            epochs[node] += 1
        elif last and rng.random() < 0.5:
            numbers[node, tenant] = next(fresh)
        if rng.random() < 0.3 or step == 299:
            out = waiting.take_all()
            if rng.random() < 0.3 and step != 299:  # the database is away
                waiting.put_back(out)
                continue
            unsent = unsent + out
            async with database.write() as session:
                await ledger.add(session, out)
            if rng.random() < 0.2:  # another manager says it all again
                async with database.write() as session:
                    await ledger.add(session, unsent)
    found: dict[tuple[str, str], list[int]] = {}
    for (node, tenant, _), counts in (await rows_of(database)).items():
        for i, value in enumerate(counts.values()):
            found.setdefault((node, tenant), [0] * len(COUNTERS))[i] += value
    assert found == truth
    assert len({hour for _, _, hour in await rows_of(database)}) > 10


@settings(max_examples=size(200, 50), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1000), st.booleans()), max_size=40))
def test_increments_add_up_with_repeated_and_missed_reports(steps: list[tuple[int, int, bool]]) -> None:
    """Step: the process or account ends (1, 2) after its report, an increment, and whether it is reported at once."""
    state: UsageMark | None = None
    total = counted_total = 0
    epoch, number, count = 0, 1, 0
    at = 0.0
    for kind, more, tells in steps:
        at += 1
        count += more
        total += more
        if tells or kind:
            each = reported(count, epoch=str(epoch), number=number, at=at)
            for _ in range(2):
                new = counted(each, state)
                counted_total += served_of(new) or 0
                state = mark(each) if new is not None else state
        if kind:
            epoch, number, count = (epoch + 1, 1, 0) if kind == 1 else (epoch, number + 1, 0)
    final = counted(reported(count, epoch=str(epoch), number=number, at=at + 1), state)
    assert counted_total + (served_of(final) or 0) == total


async def test_marks_of_an_earlier_process_are_forgotten_after_a_while(database: Database) -> None:
    async with database.write() as session:
        await ledger.add(
            session, [(NOON, reported(1, tenant="old")), (NOON, reported(1, tenant="new", epoch="two", at=5))]
        )
        await ledger.forget_epochs(session, "node", "two", before=0.5)
        assert len((await session.scalars(sa.select(UsageMarkRow))).all()) == 2
        await ledger.forget_epochs(session, "node", "two", before=2)
        (left,) = (await session.scalars(sa.select(UsageMarkRow))).all()
    assert left.tenant == "new"


def book_of(plane: Plane, *, is_writing: bool = True) -> UsageLedger:
    parts = plane.app.parts
    return UsageLedger(parts.foundation.node_requests, parts.fleet, parts.database, 60, 60, lambda: is_writing)


async def tier_rows_of(database: Database) -> dict[tuple[str, str], tuple[int, ...]]:
    """Counters by tenant and tier."""
    async with database.read() as session:
        rows = (await session.scalars(sa.select(TierUsageRow))).all()
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for row in rows:
        before = found.get((row.tenant, row.tier), (0,) * len(TIER_COUNTERS))
        new = (getattr(row, name) for name in TIER_COUNTERS)
        found[row.tenant, row.tier] = tuple(map(sum, zip(before, new, strict=True)))
    return found


def with_tiers(tiers: dict[str, tuple[int, int, int]], number: int = 1, tenant: str = "a") -> UsageCounters:
    counted = {name: TierUsageCounters(*counts) for name, counts in tiers.items()}
    return msgspec.structs.replace(counters(number, tenant, 50), served_bytes=9, tiers=counted)


async def test_tiers_are_counted_with_their_account(database: Database) -> None:
    waiting = PendingUsage()
    at = float(NOON)
    for epoch, accounts in (
        ("one", [with_tiers({"disk": (1, 2, 3)}), with_tiers({"disk": (5, 0, 0)}, 2, "b")]),
        ("one", [with_tiers({"disk": (2, 4, 6), "s3": (7, 0, 0)})]),
        ("two", [with_tiers({"disk": (1, 1, 1)})]),
    ):
        at += 1800
        assert waiting.take("node", epoch, accounts, at) == 0
        waiting.end("node")
        out = waiting.take_all()
        for _ in range(2):  # the same numbers arrive again
            async with database.write() as session:
                await ledger.add(session, out)
    assert await tier_rows_of(database) == {
        ("a", "disk"): (3, 5, 7), ("a", "s3"): (7, 0, 0), ("b", "disk"): (5, 0, 0),
    }  # fmt: skip
    served = sum(row["served_bytes"] for row in (await rows_of(database)).values())
    assert served == 3 * 9, "each account of each process reports 9 bytes"
    async with database.write() as session:
        await ledger.forget_epochs(session, "node", "two", before=at)
        left = (await session.scalars(sa.select(TierUsageMarkRow))).all()
    assert [(mark.tier, mark.epoch) for mark in left] == [("disk", "two")]


async def test_sums_beyond_what_the_database_stores_do_not_stop_the_ledger(database: Database) -> None:
    largest = 2**63 - 1
    for at in (1.0, 2.0):
        reports = [
            *(reported(largest, epoch=f"{at}", number=number, at=at + number / 10) for number in (1, 2)),
            reported(5, epoch=f"{at}", at=at, tenant="b"),
        ]
        tiers = [dataclasses.replace(report, tier="disk", counts=(7, largest, 0)) for report in reports]
        async with database.write() as session:
            await ledger.add(session, [(NOON, report) for report in (*reports, *tiers)])
    served = {tenant: counts["served_tokens"] for (_, tenant, _), counts in (await rows_of(database)).items()}
    assert served == {"a": largest, "b": 10}
    assert await tier_rows_of(database) == {("a", "disk"): (28, largest, 0), ("b", "disk"): (14, largest, 0)}


@pytest.mark.parametrize("wrong", [{"disk": (-1, 0, 0)}, {"disk": (2**63, 0, 0)}, {"a\0": (1, 0, 0)}, {"": (1, 0, 0)}])
def test_an_invalid_tier_is_left_out_and_its_account_is_not(wrong: dict[str, tuple[int, int, int]]) -> None:
    waiting = PendingUsage()
    assert waiting.take("node", "one", [with_tiers({**wrong, "good": (1, 0, 0)})], NOON) == 1
    assert [each.tier for _, each in waiting.take_all()] == ["", "good"]


def test_a_node_of_an_older_release_reports_no_tiers() -> None:
    old = msgspec.msgpack.encode([1, "a", "m", SPACE, 7, 2, 1, 0, 0, 0, 0, {}])
    account = msgspec.msgpack.decode(old, type=UsageCounters)
    assert (account.served_bytes, account.tiers) == (0, {})


async def test_written_usage_is_acknowledged_to_the_node(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.used = [counters(served=256, held_kib_s=7)]
    book = book_of(new_plane)
    await book.read()
    await book.read()
    assert new_node.noted[-1] == 0
    await book.write()
    await book.read()
    assert new_node.noted[-1] > 0
    ((key, counts),) = (await rows_of(new_plane.app.parts.database)).items()
    assert key[:2] == ("node-a", "a")
    assert (counts["served_tokens"], counts["requested_tokens"], counts["held_kib_s"]) == (256, 512, 7)


async def test_a_restarted_node_is_counted_from_zero_and_sent_all_records(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.used = [counters(served=100)]
    book = book_of(new_plane)
    await book.read()
    await book.write()
    await new_node.restart()
    known = new_plane.app.parts.fleet.nodes["node-a"]
    await new_plane.until(lambda: known.welcomed and known.epoch == new_node.epoch)
    new_node.used = [counters(served=30)]
    await book.read()
    assert new_node.noted[-1] == 0
    await book.write()
    (counts,) = (await rows_of(new_plane.app.parts.database)).values()
    assert counts["served_tokens"] == 130


async def test_another_manager_continues_where_the_first_one_stopped(new_plane: Plane, new_node: FakeNode) -> None:
    first, second = book_of(new_plane), book_of(new_plane)
    new_node.used = [counters(served=100)]
    await first.read()
    await first.write()
    new_node.used = [counters(served=150)]
    await first.read()
    await second.read()
    await second.write()
    await first.write()
    (counts,) = (await rows_of(new_plane.app.parts.database)).values()
    assert counts["served_tokens"] == 150


async def test_numbers_wait_while_the_database_is_away(
    new_plane: Plane, new_node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = book_of(new_plane)
    new_node.used = [counters(served=100)]
    await book.read()

    async def away(*_: object) -> None:
        raise StoreUnavailable("the database did not answer; try again")

    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
        patch.setattr(ledger, "add", away)
        await book.write()
    assert "usage.postponed" in [line["event"] for line in logs]
    new_node.used = [counters(served=120)]
    await book.read()
    assert new_node.noted[-1] == 0
    await book.write()
    (counts,) = (await rows_of(new_plane.app.parts.database)).values()
    assert counts["served_tokens"] == 120


async def test_a_manager_that_is_not_the_writer_sends_no_requests(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.used = [counters(served=1)]
    book = book_of(new_plane, is_writing=False)
    await book.read_last(60)
    await book.write_last()
    assert await rows_of(new_plane.app.parts.database) == {}


async def test_open_usage_is_read_and_written_at_the_end(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.used = [counters(served=1)]
    book = book_of(new_plane)
    await book.read_last(60)
    await book.write_last()
    assert len(await rows_of(new_plane.app.parts.database)) == 1


async def test_a_stop_writes_everything_although_a_node_hangs(
    settings: Settings, new_node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "LAST_READ_S", 0.1)
    monkeypatch.setattr(runtime, "LAST_WRITE_S", 60.0)
    with structlog.testing.capture_logs() as logs:
        async with serving(settings) as plane:
            await plane.until_state("in_sync")
            new_node.deaf = True
    assert "stop.not_written" not in [line["event"] for line in logs]


async def test_a_node_that_cannot_answer_is_logged_once(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.unable = True
    book = book_of(new_plane)
    with structlog.testing.capture_logs() as logs:
        await book.read()
        await book.read()
    assert [line["event"] for line in logs if line["event"].startswith("usage.")] == ["usage.not_read"]
