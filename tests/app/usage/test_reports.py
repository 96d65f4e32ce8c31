"""Reports of usage and rates over HTTP: JSON, CSV, bounds, times, and permitted callers."""

import csv
import io
import time
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from app.store.records.prefill_rates import PrefillRateRow
from app.store.usage.ledger import COUNTERS, TIER_COUNTERS, TierUsageRow, UsageMarkRow, UsageRow
from tests.app.command import output
from tests.app.plane import Plane
from tests.app.problems import is_problem

pytestmark = pytest.mark.anyio
HOUR = 3600
DAY = 24 * HOUR
START = (int(time.time()) // DAY - 10) * DAY
"""What is very old is forgotten at the start."""
SPACES = {"m": "a" * 32, "n": "b" * 32}


@pytest.fixture
async def plane(shared_plane: Plane) -> Plane:
    """A plane without usage and rates."""
    async with shared_plane.app.parts.database.write() as session:
        for table in (UsageRow, TierUsageRow, UsageMarkRow, PrefillRateRow):
            await session.execute(sa.delete(table))
    return shared_plane


def rfc(at: float, zone: str = "Z") -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S") + zone


async def used(plane: Plane, hour: int, tenant: str = "a", model: str = "m", node: str = "n1", **counts: int) -> None:
    """A row of the ledger, `hour` hours after START."""
    async with plane.app.parts.database.write() as session:
        row = UsageRow(hour=START + hour * HOUR, node=node, tenant=tenant, model=model, space=SPACES[model])
        for name in COUNTERS:
            setattr(row, name, counts.get(name, 0))
        session.add(row)


async def used_in_tier(
    plane: Plane, hour: int, tier: str, tenant: str = "a", model: str = "m", node: str = "n1", **counts: int
) -> None:
    """A row of a tier, `hour` hours after START."""
    async with plane.app.parts.database.write() as session:
        keys = {"hour": START + hour * HOUR, "node": node, "tenant": tenant, "model": model, "tier": tier}
        values = {name: counts.get(name, 0) for name in TIER_COUNTERS}
        session.add(TierUsageRow(**keys, space=SPACES[model], **values))


async def report(plane: Plane, query: str = "", hours: int = 48) -> Any:
    return await plane.get(f"/api/v1/usage?from={START}&to={START + hours * HOUR}&{query}")


async def test_use_is_summed_up_by_hour_and_tenant(plane: Plane) -> None:
    await used(plane, 0, "a", held_kib_s=3600, served_tokens=10, requested_tokens=20)
    await used(plane, 0, "a", "n", served_tokens=5)
    await used(plane, 0, "", node="n2", stored_bytes=7, refused_blocks=2)
    await used(plane, 1, "a", evicted_blocks=3)
    answer = await report(plane)
    shown = [(i["start"] - START, i["group"], i["byte_hours"], i["served_tokens"]) for i in answer["items"]]
    assert shown == [(0, "_default", 0, 0), (0, "a", 1024, 15), (HOUR, "a", 0, 0)]
    totals = answer["totals"]
    assert (totals["stored_bytes"], totals["refused_blocks"], totals["evicted_blocks"]) == (7, 2, 3)
    assert (answer["from"], answer["to"]) == (START, START + 2 * DAY)


async def test_use_is_summed_up_by_day_model_and_node(plane: Plane) -> None:
    await used(plane, 0, served_tokens=1)
    await used(plane, 23, model="n", node="n2", served_tokens=2)
    await used(plane, 24, served_tokens=4)
    by_model = (await report(plane, "step=1d&group_by=model"))["items"]
    assert [(i["start"] - START, i["group"], i["served_tokens"]) for i in by_model] == [
        (0, "m", 1), (0, "n", 2), (DAY, "m", 4),
    ]  # fmt: skip
    by_node = (await report(plane, "step=1d&group_by=node"))["items"]
    assert [(i["group"], i["served_tokens"]) for i in by_node] == [("n1", 1), ("n2", 2), ("n1", 4)]


async def test_prefill_that_was_saved_is_estimated_with_the_rates_that_are_set(plane: Plane) -> None:
    await used(plane, 0, served_tokens=1000)
    await used(plane, 0, model="n", served_tokens=50)
    totals = (await report(plane))["totals"]
    assert (totals["saved_prefill_s"], totals["unrated_tokens"]) == (0, 1050)
    rate = {"model": "m", "prefill_tokens_per_s": 100}
    assert (await plane.http.put("/api/v1/rates/m", json=rate)).status_code == 201
    totals = (await report(plane))["totals"]
    assert (totals["saved_prefill_s"], totals["unrated_tokens"]) == (10, 50)
    rate = {"model": "m", "prefill_tokens_per_s": 500, "space": SPACES["m"]}
    assert (await plane.http.put("/api/v1/rates/one-space", json=rate)).status_code == 201
    assert (await report(plane))["totals"]["saved_prefill_s"] == 2


async def test_memory_serves_the_tokens_that_no_tier_served(plane: Plane) -> None:
    await used(plane, 0, held_kib_s=3600, served_tokens=100, served_bytes=1000)
    await used(plane, 0, node="old", served_tokens=7)
    await used_in_tier(plane, 0, "disk", held_kib_s=7200, served_tokens=30, served_bytes=300)
    await used_in_tier(plane, 0, "disk", node="n2", held_kib_s=3600)
    await used_in_tier(plane, 1, "s3", model="n", held_kib_s=3600)
    answer = await report(plane)
    nothing = {"byte_hours": 0.0, "served_tokens": 0, "served_bytes": 0}
    memory = {"byte_hours": 1024.0, "served_tokens": 77, "served_bytes": 700}
    disk = {"byte_hours": 3072.0, "served_tokens": 30, "served_bytes": 300}
    s3 = {**nothing, "byte_hours": 1024.0}
    assert [(i["start"] - START, i["tiers"]) for i in answer["items"]] == [
        (0, {"memory": memory, "disk": disk}), (HOUR, {"memory": nothing, "s3": s3}),
    ]  # fmt: skip
    assert answer["totals"]["tiers"] == {"memory": memory, "disk": disk, "s3": s3}
    assert (answer["totals"]["byte_hours"], answer["totals"]["served_tokens"]) == (1024, 107)
    by_model = (await report(plane, "group_by=model&step=1d"))["items"]
    assert [(i["group"], list(i["tiers"])) for i in by_model] == [
        ("m", ["memory", "disk"]), ("n", ["memory", "s3"]),
    ]  # fmt: skip
    assert (await report(plane, "tenant=b"))["totals"]["tiers"] == {"memory": nothing}


async def test_memory_and_each_tier_have_columns_in_csv(plane: Plane) -> None:
    await used(plane, 0, "a", served_tokens=100)
    await used(plane, 0, "b", served_tokens=5)
    await used_in_tier(plane, 0, "=disk", "a", served_tokens=30)
    response = await plane.http.get(f"/api/v1/usage?from={START}&to={START + DAY}&format=csv")
    heading, *rows = csv.reader(io.StringIO(response.text))
    found = [dict(zip(heading, row, strict=True)) for row in rows]
    shown = [(each["tenant"], each["served_tokens:memory"], each["served_tokens:=disk"]) for each in found]
    assert shown == [("a", "70", "30"), ("b", "5", "0")]


async def test_the_command_shows_tiers(plane: Plane) -> None:
    await used(plane, 0, held_kib_s=3600 << 20, served_tokens=100)
    await used_in_tier(plane, 0, "disk", held_kib_s=7200 << 20, served_tokens=25, served_bytes=1 << 20)
    times = ("--from", str(START), "--to", str(START + DAY))
    out = await output(plane, "usage", "--tiers", *times)
    assert [line.split() for line in out.splitlines()[2:4]] == [
        [rfc(START)[:10], "a", "memory", "1.000", "75", "75.0", "%", "0", "B"],
        [rfc(START)[:10], "a", "disk", "2.000", "25", "25.0", "%", "1", "MiB"],
    ]
    assert "disk" not in await output(plane, "usage", *times)


async def test_a_report_is_csv_on_request_by_name_or_by_header(plane: Plane) -> None:
    await used(plane, 1, "acme, inc", held_kib_s=1, served_tokens=3)
    query = f"/api/v1/usage?from={START}&to={START + DAY}"
    by_name = await plane.http.get(f"{query}&format=csv")
    by_header = await plane.http.get(query, headers={"Accept": "text/csv"})
    assert by_name.headers["content-type"] == "text/csv; charset=utf-8"
    assert by_name.text == by_header.text
    heading, row = csv.reader(io.StringIO(by_name.text))
    found = dict(zip(heading, row, strict=True))
    assert (found["start"], found["tenant"]) == (rfc(START + HOUR), "acme, inc")
    assert (found["byte_hours"], found["served_tokens"]) == ("0.284444", "3")
    either = await plane.http.get(query, headers={"Accept": "text/html, */*"})
    assert either.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("salt", ["=1+1", "+1", "-1", "=HYPERLINK(x)", '=cmd|" c"!A1'])
async def test_no_cell_is_a_formula(plane: Plane, salt: str) -> None:
    await used(plane, 1, salt, served_tokens=3)
    response = await plane.http.get(f"/api/v1/usage?from={START}&to={START + DAY}&format=csv")
    assert [row[1] for row in csv.reader(io.StringIO(response.text))][1:] == ["'" + salt]


async def test_times_are_unix_seconds_or_rfc_3339(plane: Plane) -> None:
    await used(plane, 1, served_tokens=3)
    for start, end in ((rfc(START), rfc(START + DAY, "%2B00:00")), (rfc(START + 9000, "%2B01:30"), str(START + DAY))):
        answer = await plane.get(f"/api/v1/usage?from={start}&to={end}")
        assert answer["totals"]["served_tokens"] == 3, start


async def test_without_times_a_report_ends_now(plane: Plane) -> None:
    hour = int(time.time()) // HOUR * HOUR
    await used(plane, (hour - START) // HOUR, served_tokens=3)
    for step in ("1h", "1d"):
        answer = await plane.get(f"/api/v1/usage?step={step}")
        assert answer["totals"]["served_tokens"] == 3
        assert answer["from"] < time.time() < answer["to"] + HOUR


async def test_one_model_or_space_has_one_rate(plane: Plane) -> None:
    body = {"model": "llama", "prefill_tokens_per_s": 1}
    assert (await plane.http.put("/api/v1/rates/one", json=body)).status_code == 201
    assert "'one'" in is_problem(await plane.http.put("/api/v1/rates/two", json=body), 409)["detail"]
