"""Series: sampling, points that survive hours, days, restarts and changes of the leader, and permitted callers."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.errors import Invalid, StoreUnavailable
from app.ingest.fleet import Fleet
from app.ingest.sampler import MAX_POINTS, MAX_TENANTS, STEP_S, Sampler
from app.observe.series import FLEET, OTHER_TENANTS, SERIES, TENANT_COLUMNS, tenant_scope
from app.schemas.views.series import SeriesAnswer
from app.services.base.principals import PLANE, Principal
from app.services.views.applied_changes import AppliedChanges
from app.services.views.marks import Marks
from app.services.views.series import MAX_RANGE_S, SeriesQuery, SeriesService
from app.services.views.series_writer import SeriesWriter
from app.store.base.database import Database
from app.store.views import events
from app.store.views.events import EventRow
from app.store.views.series import DAY_S, HOUR_S, RETENTION_S, SeriesRow
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pool import PoolStats, Totals
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.callers import create_token, send
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.app.problems import is_problem

pytestmark = pytest.mark.anyio
MIDNIGHT = 1_795_651_200
COUNTED = ("requested_blocks_per_s", "stored_bytes_per_s", "hit_tokens_per_s")


def report(
    node: str = "a", epoch: str = "1", tenants: list[TenantStats] | None = None, used: int = 40, **totals: int
) -> NodeStats:
    return NodeStats(
        0.0, node, epoch, 0.0, True, PoolStats(100, used), Totals(**totals), {}, tenants or [], None, [], [], {}
    )  # fmt: skip


class Manager:
    """What one manager has of series."""

    def __init__(self, database: Database, now: float = MIDNIGHT) -> None:
        self.now = now
        self.leads = True
        self.sampler = Sampler()
        self.writer = SeriesWriter(database, self.sampler, lambda: self.leads, self.clock)
        marks = Marks(database, AppliedChanges(database, Fleet(), 3600.0))
        self.service = SeriesService(database, self.sampler, self.writer, marks, self.clock)

    def clock(self) -> float:
        return self.now

    def sample(self, *reports: NodeStats, after_s: float = STEP_S) -> None:
        self.now += after_s
        self.sampler.sample(self.now, reports)

    async def ask(
        self,
        *names: str,
        tenants: tuple[str, ...] = (),
        nodes: tuple[str, ...] = (),
        range_s: int = 60,
        step_s: int | None = None,
        end: float | None = None,
        by: Principal = PLANE,
    ) -> SeriesAnswer:
        return await self.service.answer(SeriesQuery(names, nodes, tenants, range_s, step_s, end), by)

    async def values(self, name: str, **more: Any) -> list[float | None]:
        (found,) = (await self.ask(name, **more)).series
        return found.values


@pytest.fixture
async def away(tmp_path: Path) -> AsyncIterator[Database]:
    """A database that cannot be opened."""
    opened = Database(f"sqlite:///{tmp_path / 'nowhere' / 'larder.db'}")
    yield opened
    await opened.close()


def busy(number: int, requested: int = 0) -> NodeStats:
    """A report of a node with 7 more requested blocks, 5 of them of tenant `t`, for each number."""
    tenant = TenantStats("t", bytes=10, requested_blocks=number * 5, hit_blocks=number * 2, hit_tokens=number)
    return report(
        tenants=[tenant], used=number % 50, requested_blocks=requested or number * 7, hit_blocks=number * 3,
        stored_bytes=number * number,
    )  # fmt: skip


async def test_rates_ratios_and_gauges_are_those_of_the_reports(away: Database) -> None:
    manager = Manager(away)
    manager.sample(report("a", requested_blocks=1000, hit_blocks=1000, used=1))
    manager.sample(report("a", requested_blocks=1100, hit_blocks=1050, used=2), report("b", used=5))
    manager.sample(report("a", requested_blocks=1100, hit_blocks=1050, used=4), report("b", used=5))
    assert await manager.values("requested_blocks_per_s", range_s=30) == [None, 10, 0]
    assert await manager.values("hit_ratio", range_s=30) == [None, 0.5, None]
    assert await manager.values("used_bytes", range_s=30) == [1, 7, 9]
    assert await manager.values("used_bytes", range_s=30, nodes=("b",)) == [None, 5, 5]
    assert await manager.values("nodes", range_s=30, step_s=30) == [pytest.approx(5 / 3, rel=1e-5)]
    assert await manager.values("hit_ratio", range_s=30, step_s=30) == [0.5]
    assert (await manager.ask("hit_ratio", range_s=30)).at == [MIDNIGHT + each for each in (10, 20, 30)]


async def test_a_process_that_replaces_another_is_counted_from_zero(away: Database) -> None:
    manager = Manager(away)
    for epoch, requested in (("1", 100), ("1", 200), ("2", 30), ("2", 30)):
        tenant = TenantStats("t", requested_blocks=requested)
        manager.sample(report(epoch=epoch, requested_blocks=requested, tenants=[tenant]))
    assert await manager.values("requested_blocks_per_s", range_s=40) == [None, 10, 3, 0]
    assert await manager.values("requested_blocks_per_s", range_s=40, tenants=("t",)) == [None, 10, 3, 0]


async def test_a_time_without_reports_is_null_and_its_counts_are_no_peak(away: Database) -> None:
    manager = Manager(away)
    manager.sample(report(requested_blocks=100))
    manager.sample(report(requested_blocks=200))
    manager.sample()
    manager.sample(report(requested_blocks=9999), after_s=120)
    manager.sample(report(requested_blocks=10_009))
    values = await manager.values("requested_blocks_per_s", range_s=160)
    assert values == [None, 10, *[None] * 13, 1]
    assert (await manager.values("used_bytes", range_s=160))[1:] == [40, *[None] * 12, 40, 40]


async def test_a_tenant_that_a_known_process_lists_for_the_first_time_is_new(away: Database) -> None:
    manager = Manager(away)
    manager.sample(report(tenants=[TenantStats("old", requested_blocks=500)]))
    tenants = [TenantStats("old", requested_blocks=500), TenantStats("new", requested_blocks=20)]
    manager.sample(report(tenants=tenants))
    assert await manager.values("requested_blocks_per_s", range_s=20, tenants=("new",)) == [None, 2]
    assert await manager.values("requested_blocks_per_s", range_s=20, tenants=("old",)) == [None, 0]


async def test_two_hundred_tenants_have_series_and_the_others_are_summed(away: Database) -> None:
    manager = Manager(away)
    many = MAX_TENANTS + 50

    def tenants(times: int) -> list[TenantStats]:
        # The smallest tenant makes half of the requests, so it is among those with series.
        requested = [100 * many if place == many - 1 else 100 for place in range(many)]
        return [
            TenantStats(f"t{place:03}", bytes=many - place, requested_blocks=requested[place] * times)
            for place in range(many)
        ]

    manager.now = MIDNIGHT - 20
    manager.sample(report(tenants=tenants(1)))
    manager.sample(report(tenants=tenants(2)))
    manager.sample(report(tenants=tenants(3)))  # the first point of an hour
    point = manager.sampler.points[-1]
    named = {scope for scope in point.packed if scope.startswith("t")} - {tenant_scope(OTHER_TENANTS)}
    assert len(named) == MAX_TENANTS
    assert tenant_scope("t000") in named
    assert tenant_scope(f"t{many - 1:03}") in named
    place = list(TENANT_COLUMNS).index("requested_blocks")
    sums = [(point.values(scope) or ())[place] or 0 for scope in {*named, tenant_scope(OTHER_TENANTS)}]
    assert sum(sums) == sum(each.requested_blocks for each in tenants(1))
    manager.sample(report(tenants=[*tenants(4), TenantStats("giant", bytes=10**9)]))
    assert tenant_scope("giant") not in manager.sampler.points[-1].packed
    manager.sample(report(tenants=[*tenants(5), TenantStats("giant", bytes=10**9)]), after_s=HOUR_S)
    assert tenant_scope("giant") in manager.sampler.points[-1].packed
    assert sum(scope.startswith("t") for scope in manager.sampler.points[-1].packed) == MAX_TENANTS + 1


async def fill(manager: Manager, start: int, points: int) -> None:
    """Sample once each step from `start` on, and flush each minute."""
    manager.now = start
    for number in range(points + 1):
        manager.sampler.sample(start + number * STEP_S, [busy(number)])
        manager.now = start + number * STEP_S
        if number % 36 == 35:
            await manager.writer.step()
            assert manager.writer.problem == ""
    await manager.writer.step()


async def sums(manager: Manager, step_s: int, start: int, end: int, **more: Any) -> dict[str, float]:
    """The sum of each counter over a time."""
    answer = await manager.ask(*COUNTED, range_s=end - start, step_s=step_s, end=end, **more)
    return {each.name: sum(value or 0 for value in each.values) * step_s for each in answer.series}


async def rows(database: Database, step_s: int) -> set[tuple[str, int]]:
    """Scopes and times of the stored rows of a step."""
    async with database.read() as session:
        table = SeriesRow.__table__.c
        query = sa.select(table.scope, table.at).where(table.step_s == step_s)
        return {(row[0], row[1]) for row in (await session.execute(query)).all()}


async def test_no_count_is_lost_when_points_grow_old(database: Database) -> None:
    manager = Manager(database)
    points = 2 * HOUR_S // STEP_S
    start, end = MIDNIGHT - HOUR_S, MIDNIGHT + HOUR_S
    await fill(manager, start, points)
    counted = {
        "requested_blocks_per_s": points * 7, "stored_bytes_per_s": points * points, "hit_tokens_per_s": points,
    }  # fmt: skip
    of_tenant = {"requested_blocks_per_s": points * 5, "hit_tokens_per_s": points}

    async def check(*steps_s: int) -> None:
        for step_s in steps_s:
            assert await sums(manager, step_s, start, end) == pytest.approx(counted, rel=1e-4)
            answer = await manager.ask(*of_tenant, range_s=end - start, step_s=step_s, end=end, tenants=("t",))
            found = {each.name: sum(value or 0 for value in each.values) * step_s for each in answer.series}
            assert found == pytest.approx(of_tenant, rel=1e-4)
            ratio = await manager.values("hit_ratio", range_s=end - start, step_s=step_s, end=end)
            assert {value for value in ratio if value is not None} == {0.428571}
            used = await manager.values("used_bytes", range_s=end - start, step_s=step_s, end=end)
            assert [value for value in used if value is not None] == pytest.approx([24.5] * len(used), abs=24.5)

    await check(10, 20, 60, 300, 1800, 3600)
    for step_s in RETENTION_S:
        times = {at for scope, at in await rows(database, step_s) if scope == FLEET}
        assert times == {*range(start + (0 if step_s == STEP_S else step_s), end + 1, step_s), *times & {start}}
    manager.now = MIDNIGHT + 4 * HOUR_S
    await manager.writer.tidy()
    assert await rows(database, 10) == set()
    # Each point of 10 s now has the value of the 2 minutes that it is in.
    await check(10, 120, 600)
    manager.now = MIDNIGHT + 2 * DAY_S
    await manager.writer.tidy()
    assert await rows(database, 120) == set()
    await check(300, 900, 1800, 3600)
    with pytest.raises(Invalid, match="a multiple of 300 for times more than a day ago, got 10"):
        await check(10)
    manager.now = MIDNIGHT + 32 * DAY_S
    await manager.writer.tidy()
    assert await rows(database, 1800) == set()


async def test_managers_that_write_the_same_time_count_it_once(database: Database) -> None:
    first, second = Manager(database), Manager(database)
    for number in range(1, 31):
        for manager in (first, second):
            manager.sample(busy(number))
    for manager in (first, second):
        await manager.writer.flush()
    second.writer._written = MIDNIGHT + 60
    await second.writer.flush()
    reader = Manager(database, now=first.now)
    for step_s in (10, 120, 300):
        values = await reader.values("requested_blocks_per_s", range_s=300, step_s=step_s)
        assert [value for value in values if value is not None] == [0.7] * (300 // step_s - (step_s == 10))
    assert len(await rows(database, 10)) == 3 * 30


async def test_a_new_process_adds_to_stored_points_and_the_time_between_is_null(database: Database) -> None:
    first = Manager(database)
    for number in range(1, 7):
        first.sample(busy(number))
    await first.writer.flush_last()
    second = Manager(database, now=first.now + 60)
    for number in range(20, 23):
        second.sample(busy(number))
    expected = [None, *[0.7] * 5, *[None] * 7, 0.7, 0.7]
    assert await second.values("requested_blocks_per_s", range_s=150) == expected
    await second.writer.step()
    assert await second.values("requested_blocks_per_s", range_s=150) == expected
    assert (await second.values("used_bytes", range_s=150))[5:13] == [6, *[None] * 6, 20]


async def test_a_successor_writes_the_leaders_unwritten_points(database: Database) -> None:
    leader, follower = Manager(database), Manager(database)
    follower.leads = False
    for number in range(1, 19):
        leader.sample(busy(number))
        follower.sample(busy(number))
        await follower.writer.step()
        if number == 6:
            await leader.writer.step()
    follower.leads = True
    await follower.writer.step()
    reader = Manager(database, now=follower.now)
    expected = [None, *[0.7] * 17]
    for manager in (leader, follower, reader):
        assert await manager.values("requested_blocks_per_s", range_s=180) == expected
    assert {at for _, at in await rows(database, STEP_S)} == {*range(MIDNIGHT + 10, MIDNIGHT + 190, 10)}


async def test_a_follower_answers_with_its_newest_points(database: Database) -> None:
    leader, follower = Manager(database), Manager(database)
    for number in range(1, 7):
        leader.sample(busy(number))
        follower.sample(busy(number))
    await leader.writer.step()
    follower.sample(busy(7))
    assert await follower.values("requested_blocks_per_s", range_s=70) == [None, *[0.7] * 6]


@contextmanager
def refusing(database: Database) -> Iterator[None]:
    """The database takes no changes, as when its disk is full."""

    def write(*, light: bool = False) -> Any:
        raise StoreUnavailable("the disk is full")

    original, database.write = database.write, write  # type: ignore[method-assign]
    try:
        yield
    finally:
        database.write = original  # type: ignore[method-assign]


async def test_points_wait_for_an_unavailable_database_and_answers_report_it(database: Database) -> None:
    manager = Manager(database)
    manager.sample(busy(1))
    await manager.writer.step()
    with refusing(database):
        manager.sample(busy(2))
        await manager.writer.step()
        answer = await manager.ask("requested_blocks_per_s", range_s=20)
        assert answer.problem == "points after 00:00:10 UTC are not stored: the disk is full"
        assert answer.series[0].values == [None, 0.7]
    await manager.writer.step()
    assert (await manager.ask("hit_ratio")).problem == ""
    successor = Manager(database, now=manager.now)
    assert await successor.values("requested_blocks_per_s", range_s=20) == [None, 0.7]


async def test_points_that_no_longer_fit_into_memory_are_counted_as_lost(database: Database) -> None:
    manager = Manager(database)
    manager.sample(busy(1))
    await manager.writer.step()
    with refusing(database):
        for number in range(2, MAX_POINTS + 12):
            manager.sample(busy(number))
        await manager.writer.step()
        assert manager.writer.lost == 10
    await manager.writer.step()
    assert (manager.writer.lost, manager.writer.problem) == (10, "")


async def test_the_newest_points_are_shown_while_the_database_is_away(away: Database) -> None:
    manager = Manager(away)
    manager.sample(busy(1))
    manager.sample(busy(2))
    answer = await manager.ask("requested_blocks_per_s", range_s=20)
    assert answer.series[0].values == [None, 0.7]
    assert answer.problem.startswith("stored points are missing: ")


async def test_values_that_engines_forge_do_not_stop_the_history(database: Database) -> None:
    manager = Manager(database)
    for number in range(1, 20):
        manager.sample(*(report(node, requested_blocks=number << 58, used=2**62) for node in map(str, range(99))))
    await manager.writer.step()
    assert manager.writer.problem == ""
    values = await Manager(database, now=MIDNIGHT + 1800).values("requested_blocks_per_s", range_s=1800, step_s=1800)
    assert values[-1] == pytest.approx(2**55 / STEP_S, rel=0.5)


async def test_a_rate_is_for_the_measured_part_of_a_step(database: Database) -> None:
    manager = Manager(database, now=MIDNIGHT - 100)
    for number in range(1, 10):
        manager.sample(busy(number))
    await manager.writer.flush()
    manager.now = MIDNIGHT + 2 * DAY_S
    await manager.writer.tidy()
    values = await manager.values("requested_blocks_per_s", range_s=3600, step_s=1800, end=MIDNIGHT)
    assert values == [None, 0.7]


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("name=hit_ratio&name=bogus", f"name: expected one of {', '.join(SERIES)}; got 'bogus'"),
        ("name=capacity_bytes&tenant=t", "got 'capacity_bytes'"),
        ("name=limit_bytes&node=n", "name: expected a series that is kept for nodes, got 'limit_bytes'"),
        ("name=hit_ratio&tenant=a/b", "tenant: expected no control characters"),
        ("name=hit_ratio&step_s=15", "step_s: expected a multiple of 10, got 15"),
        ("name=hit_ratio&step_s=0", "step_s: "),
        (f"name=hit_ratio&range_s={30 * DAY_S}&step_s=10", "step_s: expected a multiple of 300 for times more"),
        (f"name=hit_ratio&range_s={MAX_RANGE_S + 1}", "range_s: "),
        ("name=hit_ratio&range_s=86400&step_s=10" + "".join(f"&node=n{i}" for i in range(24)), "200,000 values"),
        ("name=hit_ratio&end=nan", "end: "),
        ("name=hit_ratio&range_s=60&range_s=60", "range_s: expected once"),
        ("", "name"),
    ],
)
async def test_a_wrong_query_is_refused_with_the_expected_values(shared_plane: Plane, query: str, detail: str) -> None:
    assert detail in is_problem(await shared_plane.http.get(f"/api/v1/series?{query}"), 422)["detail"]


async def test_series_come_with_changes_and_restarts_and_are_not_sent_twice(plane: Plane, node: FakeNode) -> None:
    node.stats.tenants = [TenantStats("acme", bytes=5)]
    await plane.put_quota("acme", 5)
    await node.restart()
    path = "/api/v1/series?name=used_bytes&name=nodes&range_s=60"
    async with asyncio.timeout(60):
        while True:
            body = await plane.get(path)
            kinds = {mark["kind"] for mark in body["marks"]}
            if any(value is not None for value in body["series"][1]["values"]) and {"change", "node"} <= kinds:
                break
            await asyncio.sleep(0.1)
    assert [each["name"] for each in body["series"]] == ["used_bytes", "nodes"]
    assert len(body["at"]) == len(body["series"][0]["values"]) == 6
    (change,) = [mark for mark in body["marks"] if mark["kind"] == "change"]
    assert change["title"].startswith("create quota acme: limit_bytes 5 B, ")
    assert (change["tenant"], change["level"]) == ("acme", "info")
    assert change["ref"].startswith("audit/")
    past = f"{path}&end={body['at'][-1]}"
    first = await plane.http.get(past)
    again = await plane.http.get(past, headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    other = await plane.get(f"{path}&tenant=rival".replace("&name=nodes", ""))
    assert not [mark for mark in other["marks"] if mark["tenant"] == "acme"]


async def test_a_restart_is_one_mark_and_a_node_that_comes_back_is_another(database: Database) -> None:
    manager = Manager(database)
    at = MIDNIGHT
    rows = [
        ("dataplane.exited", at, "a", {"code": -9}),
        ("dataplane.started", at + 1, "a", {"pid": 7}),
        ("node.joined", at + 2, "a", {}),
        ("alert.fired", at + 3, "", {"alertname": "Hot", "alert_severity": "critical", "tenant": "t"}),
        ("node.lost", at + 20, "a", {}),
        ("node.joined", at + 30, "a", {}),
        ("blocks.evicted", at + 31, "a", {}),
    ]
    async with database.write() as session:
        await events.append(
            session, [EventRow(at=at, name=name, node=node, fields=fields) for name, at, node, fields in rows]
        )
    manager.now = at + 60
    marks = (await manager.ask("nodes")).marks
    assert [(mark.kind, mark.level, mark.title) for mark in marks] == [
        ("crash", "error", "data plane killed by signal 9"),
        ("restart", "info", "data plane started"),
        ("alert", "error", "Hot fires"),
        ("node", "error", "node lost"),
        ("node", "info", "node joined"),
    ]
    assert [mark.tenant for mark in marks if mark.kind == "alert"] == ["t"]
    of_other_node = (await manager.ask("hit_ratio", nodes=("b",))).marks
    assert [mark.kind for mark in of_other_node] == ["alert"]


async def test_a_limited_caller_sees_the_series_and_marks_of_its_tenants(guarded: Plane) -> None:
    token = await create_token(guarded, "acme-op", tenants=["acme", "beta"])
    sampler = guarded.app.parts.ingest.sampler
    names = ("acme", "beta", "rival")
    for number in range(2):
        tenants = [TenantStats(name, bytes=100, requested_blocks=number * 50) for name in names]
        sampler.sample(time.time() + number * STEP_S, [report(tenants=tenants)])
    end = sampler.points[-1].at
    for name in names:
        await guarded.put_quota(name, 5, wait="")
    guarded.app.parts.views.series._clock = lambda: float(end + 5)

    async def get(query: str) -> Any:
        return (await send(guarded, token, "GET", f"/api/v1/series?range_s=20&{query}")).json()

    body = await get("name=used_bytes&name=requested_blocks_per_s&name=capacity_bytes")
    assert [each["values"][-1] for each in body["series"]] == [200, 10, None]
    assert {mark["tenant"] for mark in body["marks"]} <= {"acme", "beta"}
    assert "rival" not in str(body)
    one = await get("name=used_bytes&tenant=acme")
    assert one["series"][0]["values"][-1] == 100
    for query in ("name=hit_ratio&tenant=rival", "name=hit_ratio&node=a", "name=hit_ratio&tenant=/other"):
        assert (await get(query))["status"] == 403
    listed = (await send(guarded, token, "GET", "/api/v1/series/names")).json()
    assert all(each["scopes"] == ["tenant"] for each in listed["items"])
    assert len(listed["items"]) < len((await guarded.get("/api/v1/series/names"))["items"]) == len(SERIES)
