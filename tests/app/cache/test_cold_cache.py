"""A cache that lost its blocks and a pin that holds nothing are shown: in the API, metrics, events and commands."""

import asyncio
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.cli.commands.machine import doctor as doctor_command
from app.cli.support.printing import caches
from app.services.fleet.cache_start import is_cold
from app.store.fleet import held_pins, nodes
from dataplane.protocol.events import CacheStartedCold
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pins import PinInTier, PinStats
from dataplane.protocol.stats.pool import PoolStats
from dataplane.protocol.stats.processes import CacheStart
from dataplane.protocol.stats.tiers import TierStats
from tests.app.callers import create_token, guarding, send
from tests.app.command import larder, output, run
from tests.app.doctor import examined as examined_here
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane, effective, serving, settings_in

pytestmark = pytest.mark.anyio
H = "/api/v1/events/history"
REASON = "the memory was gone when the data plane started"
COLD = CacheStart("cold", float(int(time.time()) - 600), REASON, lost_blocks=1234, lost_bytes=1000)


def pin(name: str, resident: int, resolved: int = 4, **more: Any) -> PinStats:
    return PinStats(
        name, resolved, resident, bytes=resident * 1024, guaranteed=more.pop("guaranteed", resident), **more
    )


# ---- a cold cache


@pytest.mark.parametrize(
    ("start", "pool", "cold"),
    [
        (COLD, PoolStats(ready_bytes=499), True),
        (COLD, PoolStats(ready_bytes=500), False),
        (msgspec.structs.replace(COLD, released=True), PoolStats(), False),
        (msgspec.structs.replace(COLD, lost_blocks=0), PoolStats(), False),
        (msgspec.structs.replace(COLD, lost_bytes=0), PoolStats(ready_bytes=499, blocks=616), True),
        (msgspec.structs.replace(COLD, lost_bytes=0), PoolStats(ready_bytes=499, blocks=617), False),
        (msgspec.structs.replace(COLD, kind="warm"), PoolStats(), False),
        (msgspec.structs.replace(COLD, kind="first"), PoolStats(), False),
        (CacheStart(), PoolStats(), False),
    ],
)
def test_a_cache_is_cold_until_half_of_its_lost_bytes_are_cached_again(
    start: CacheStart, pool: PoolStats, cold: bool
) -> None:
    stats = msgspec.structs.replace(FakeNode(Path()).stats, start=start, pool=pool)
    assert is_cold(stats) is cold


async def samples(plane: Plane) -> dict[tuple[str, ...], float]:
    """By name and values of labels, in the order of the labels' names."""
    return {(s.name, *dict(sorted(s.labels.items())).values()): s.value for s in await plane.samples()}


async def test_how_a_cache_began_is_in_the_api_and_in_the_metrics(new_plane: Plane, new_node: FakeNode) -> None:
    before = await new_plane.node()
    assert (before["stats"]["start"]["kind"], before["stats"]["cold"]) == ("unknown", False)
    await new_plane.report(new_node, start=COLD)
    for path in ("/api/v1/nodes/node-a", "/api/v1/overview"):
        answer = await new_plane.get(path)
        stats = answer.get("nodes", [answer])[0]["stats"]
        assert (stats["start"], stats["cold"]) == (msgspec.to_builtins(COLD), True), path
    found = await samples(new_plane)
    assert found["larder_cache_cold", "node-a"] == 1
    assert found["larder_cache_start_lost_blocks", "node-a"] == 1234
    assert found["larder_cache_start_lost_bytes", "node-a"] == 1000
    kinds = {name[1]: value for name, value in found.items() if name[0] == "larder_cache_start"}
    assert kinds == {"unknown": 0, "first": 0, "warm": 0, "cold": 1, "released": 0}
    released = msgspec.structs.replace(COLD, released=True)
    await new_plane.report(new_node, start=released)
    found = await samples(new_plane)
    assert (found["larder_cache_cold", "node-a"], found["larder_cache_start", "released", "node-a"]) == (0, 1)
    await new_plane.report(new_node, start=CacheStart("warm", 5.0, blocks=4, bytes=4096))
    found = await samples(new_plane)
    assert found["larder_cache_start", "warm", "node-a"] == 1
    assert (found["larder_cache_start_kept_blocks", "node-a"], found["larder_cache_start_kept_bytes", "node-a"]) == (
        4,
        4096,
    )


async def test_a_cold_start_is_one_event_though_both_processes_repeat_it(socket_dir: Path, new_node: FakeNode) -> None:
    new_node.stats = msgspec.structs.replace(new_node.stats, start=COLD)
    settings = settings_in(socket_dir)
    async with serving(settings) as first:
        await first.until_state("in_sync")
        (event,) = await first.stored_events("name=cache.started_cold")
        assert (event["node"], event["at"]) == ("node-a", COLD.at)
        assert event["fields"] == {
            "reason": REASON, "released": False, "lost_blocks": 1234, "lost_bytes": 1000,
        }  # fmt: skip
        await new_node.publish(CacheStartedCold(COLD.at, REASON, False, 1234, 1000))
    async with serving(settings) as second:
        await second.until_state("in_sync")
        later = msgspec.structs.replace(COLD, at=COLD.at + 60, reason="lost again")
        await second.until(lambda: bool(second.app.parts.fleet.stats()))
        await second.report(new_node, start=later)
        events = await second.stored_events("name=cache.started_cold", 2)
        assert [event["fields"]["reason"] for event in events] == ["lost again", REASON]


# ---- pins that hold nothing


async def test_a_pin_without_blocks_has_no_effect_and_shows_what_to_expect(
    new_plane: Plane, new_node: FakeNode
) -> None:
    await new_plane.put_pin("p")
    await new_plane.report(new_node, pins=[pin("p", 0)])
    answer = await new_plane.get("/api/v1/pins/p")
    found = effective(answer)
    assert (found["status"], found["reason"], answer["holds_nothing"]) == ("False", "HoldsNothing", True)
    assert found["message"] == (
        "on 0 of 1 nodes; none of its 4 blocks is cached on node-a; they are kept as soon as an engine stores them"
    )
    assert answer["status"]["applied"] is True
    assert (await samples(new_plane))["larder_pin_holds_nothing", "p"] == 1
    await new_plane.report(new_node, pins=[pin("p", 1)])
    answer = await new_plane.get("/api/v1/pins/p")
    assert (effective(answer)["reason"], answer["holds_nothing"]) == ("Effective", False)
    assert ("larder_pin_holds_nothing", "p") not in await samples(new_plane)
    await new_plane.report(new_node, pins=[pin("p", 0, resolved=1)])
    again = effective(await new_plane.get("/api/v1/pins/p"))
    assert again["message"].endswith(
        "its only block is not cached on node-a; it is kept as soon as an engine stores it"
    )
    assert again["since"] > found["since"]


@pytest.mark.parametrize(
    ("stats", "reason"),
    [
        (pin("p", 0, strength="permanent"), "HoldsNothing"),
        (pin("p", 0, strength="soft"), "Effective"),
        (pin("p", 0, expired=True), "Expired"),
        (pin("p", 2, guaranteed=0, degraded=2), "OutsideBudget"),
        (pin("p", 0, tier="gpu"), "NoGpuCopyPool"),
    ],
)
async def test_only_a_pin_that_should_hold_something_holds_nothing(
    new_plane: Plane, new_node: FakeNode, stats: PinStats, reason: str
) -> None:
    await new_plane.put_pin("p", tier=stats.tier, strength=stats.strength)
    await new_plane.report(new_node, pins=[stats])
    answer = await new_plane.get("/api/v1/pins/p")
    assert effective(answer)["reason"] == reason
    assert answer["holds_nothing"] is (stats.resident == 0 and stats.strength != "soft" and not stats.expired)


async def test_a_pin_with_blocks_on_another_node_lacks_nothing(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_pin("p")
    parts = new_plane.app.parts
    other = type(parts.fleet.nodes["node-a"])("node-b", "ipc:///nowhere", observed=dict(new_node.observed))
    parts.fleet.nodes["node-b"] = other

    def other_holds(blocks: int) -> None:
        stats = msgspec.structs.replace(new_node.stats_now(), node="node-b", pins=[pin("p", blocks)])
        parts.fleet.heartbeat("node-b", stats, 1e12, stats.at)

    other_holds(4)
    await new_plane.report(new_node, pins=[pin("p", 0)])
    answer = await new_plane.get("/api/v1/pins/p")
    assert (effective(answer)["status"], effective(answer, "node-a")["status"]) == ("True", "True")
    assert (answer["holds_nothing"], parts.fleet.empty_pins()) == (False, [])
    other_holds(0)
    answer = await new_plane.get("/api/v1/pins/p")
    assert {name: effective(answer, name)["reason"] for name in ("node-a", "node-b")} == {
        "node-a": "HoldsNothing",
        "node-b": "HoldsNothing",
    }
    assert (answer["holds_nothing"], parts.fleet.empty_pins()) == (True, ["p"])
    other_holds(4)
    other.lost = True
    assert parts.fleet.empty_pins() == ["p"], "what a lost node holds is of no use"
    assert (await new_plane.get("/api/v1/pins/p"))["holds_nothing"] is True


def s3(listed: int | None, fault: str = "", **more: Any) -> TierStats:
    return TierStats("s3", "s3", 1 << 30, serves=True, shared=True, listed_blocks=listed, listing_fault=fault, **more)


async def test_a_pin_may_have_blocks_in_a_tier_that_is_being_listed(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_pin("p")
    for tier in (s3(7), s3(None, state="opening")):
        await new_plane.report(new_node, pins=[pin("p", 0)], tiers=[tier])
        answer = await new_plane.get("/api/v1/pins/p")
        assert (answer["holds_nothing"], answer["unlisted_tiers"]) == (False, ["s3"])
        assert (effective(answer)["status"], new_plane.app.parts.fleet.empty_pins()) == ("True", [])
        unknown = "whether tiers hold them is unknown until the listing of tier s3 is complete"
        for command in (("pins", "list"), ("pins", "get", "p")):
            assert "unknown until s3 is listed" in await output(new_plane, *command)
        assert unknown in " ".join((await output(new_plane, "status")).split())
    for tier in (s3(None), s3(7, fault="the list is not in order")):
        await new_plane.report(new_node, pins=[pin("p", 0)], tiers=[tier])
        answer = await new_plane.get("/api/v1/pins/p")
        assert (answer["holds_nothing"], answer["unlisted_tiers"]) == (True, [])
    tiers = {"s3": PinInTier(4, 4096, 4)}
    await new_plane.report(
        new_node, pins=[pin("p", 0, tiers=tiers, only_in_tiers=4, not_loaded="detached")], tiers=[s3(None)]
    )
    answer = await new_plane.get("/api/v1/pins/p")
    assert (answer["holds_nothing"], answer["unlisted_tiers"]) == (False, [])
    assert "4 only in tiers: no engine attached" in await output(new_plane, "pins", "list")


async def test_a_pin_is_not_emptied_as_long_as_tiers_have_or_may_have_its_blocks(
    new_plane: Plane, new_node: FakeNode
) -> None:
    watch = new_plane.app.parts.cache.watch

    def applied(generation: int) -> bool:
        return watch._generations.get("node-a") == generation

    await new_plane.put_pin("p")
    await new_plane.report(new_node, pins=[pin("p", 4)])
    await new_plane.until(lambda: "p" in watch._digests.get("node-a", {}))
    for number, (in_tiers, tier) in enumerate((({"s3": PinInTier(4, 4096, 4)}, s3(None)), ({}, s3(7)))):
        await new_plane.report(new_node, pins=[pin("p", 0, tiers=in_tiers)], tiers=[tier])
        generation = (await new_plane.put_pin(f"other-{number}"))["generation"]
        await new_plane.until(partial(applied, generation))
        assert "p" in watch._digests["node-a"]
    await new_plane.report(new_node, pins=[pin("p", 0)], tiers=[s3(None)])
    await new_plane.until(lambda: "p" not in watch._digests["node-a"])


async def test_pins_that_hold_nothing_are_bounded_in_the_metrics(new_plane: Plane, new_node: FakeNode) -> None:
    pins = [pin(f"p{number:02}", 0) for number in range(60)] + [pin("other", 0)]
    await new_plane.report(new_node, pins=pins)
    found = {name[1]: value for name, value in (await samples(new_plane)).items() if "holds_nothing" in name[0]}
    assert (len(found), found["p49"], found["other"], "p50" in found) == (51, 1, 11, False)


async def test_an_answer_to_a_new_pin_counts_cached_blocks(new_plane: Plane, new_node: FakeNode) -> None:
    """The node acknowledges at once and reports its blocks a moment later."""
    new_node.stats = msgspec.structs.replace(new_node.stats, pins=[pin("p", 4)])
    answer = await new_plane.put_pin("p")
    assert (answer["resident"], effective(answer)["status"]) == (4, "True")


# ---- pins that were emptied


async def cache_pins(plane: Plane, node: FakeNode, *names: str) -> None:
    """Let the node hold blocks of these pins and of no other, and wait until the plane has written that down."""
    await plane.report(node, pins=[pin(name, 4) for name in names])
    watch = plane.app.parts.cache.watch
    await plane.until(lambda: set(watch._digests.get("node-a", ())) == set(names) and not watch._unwritten)


async def test_a_pin_that_lost_its_blocks_is_an_event(new_plane: Plane, new_node: FakeNode) -> None:
    for name in ("p", "q"):
        await new_plane.put_pin(name, tenant="acme")
    await cache_pins(new_plane, new_node, "p", "q")
    await new_plane.report(new_node, pins=[pin("p", 0), pin("q", 1)])
    (event,) = await new_plane.stored_events("name=pin.emptied")
    assert (event["node"], event["fields"]) == (
        "node-a",
        {"pin": "p", "tenant": "acme", "strength": "guaranteed", "blocks": 4},
    )
    await cache_pins(new_plane, new_node, "p", "q")
    await new_plane.report(new_node, pins=[pin("p", 0), pin("q", 0)])
    events = await new_plane.stored_events("name=pin.emptied", 3)
    assert sorted(event["fields"]["pin"] for event in events) == ["p", "p", "q"]


async def test_a_pin_that_a_restart_of_the_node_emptied_is_an_event(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_pin("p")
    await cache_pins(new_plane, new_node, "p")
    await new_node.stop()
    new_node.stats = msgspec.structs.replace(new_node.stats, pins=[])  # until the snapshot of pins is pushed again
    new_node.observed.clear()
    await new_node.start()
    await new_plane.until(lambda: "pins" in new_node.observed)
    await new_plane.report(new_node, pins=[pin("p", 0)])
    (event,) = await new_plane.stored_events("name=pin.emptied")
    assert event["fields"]["pin"] == "p"


async def test_a_pin_that_a_restart_of_both_processes_emptied_is_an_event(socket_dir: Path, new_node: FakeNode) -> None:
    settings = settings_in(socket_dir)
    async with serving(settings) as first:
        await first.until_state("in_sync")
        for name in ("kept", "p"):
            await first.put_pin(name)
        await cache_pins(first, new_node, "kept", "p")
    await new_node.stop()
    new_node.stats = msgspec.structs.replace(new_node.stats, pins=[pin("p", 0), pin("kept", 4)])
    await new_node.start()
    async with serving(settings) as second:
        await second.until_state("in_sync")
        (event,) = await second.stored_events("name=pin.emptied")
        assert event["fields"]["pin"] == "p"
        await second.until(lambda: not second.app.parts.cache.watch._unwritten)
    async with serving(settings) as third:
        await third.until_state("in_sync")
        await third.report(new_node, pins=[pin("p", 0), pin("kept", 0)])
        events = await third.stored_events("name=pin.emptied", 2)
        assert [event["fields"]["pin"] for event in events] == ["kept", "p"], "p was empty before"


async def test_a_pin_that_was_changed_or_deleted_lost_nothing(
    new_plane: Plane, new_node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached: set[str] = set()

    def stats_now() -> NodeStats:
        """Act as a node that caches the blocks of some keys and counts them for the pins that it has applied."""
        pins = [pin(each.name, 4 * (each.keys_digest in cached), strength=each.strength) for each in new_node.pins]
        return msgspec.structs.replace(FakeNode.stats_now(new_node), pins=pins)

    monkeypatch.setattr(new_node, "stats_now", stats_now)
    watch = new_plane.app.parts.cache.watch
    for name in ("changed", "deleted", "last", "weaker"):
        cached.add((await new_plane.put_pin(name))["keys_digest"])
    await new_plane.until(lambda: len(watch._digests.get("node-a", ())) == 4)
    assert (await new_plane.http.delete("/api/v1/pins/deleted?wait=30s")).is_success
    await new_plane.put_pin("weaker", strength="soft")
    await new_plane.put_pin("changed", tokens=[7] * 8)
    await new_plane.until(lambda: set(watch._digests["node-a"]) == {"last"})
    cached.clear()
    await new_plane.stored_events("name=pin.emptied")
    await new_plane.until(lambda: not watch._digests["node-a"] and not watch._unwritten)
    assert [event["fields"]["pin"] for event in await new_plane.stored_events("name=pin.emptied")] == ["last"]


async def test_a_node_that_is_forgotten_is_known_to_hold_nothing(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_pin("p")
    await cache_pins(new_plane, new_node, "p")
    database = new_plane.app.parts.database
    async with database.read() as session:
        assert [(row.node, row.pin) for row in await held_pins.all_pins(session)] == [("node-a", "p")]
    async with database.write() as session:
        row = await session.get(nodes.NodeRow, "node-a")
        assert row is not None
        await nodes.forget(session, row)
    async with database.read() as session:
        assert list(await held_pins.all_pins(session)) == []


# ---- shown to tenants, and in the command line


async def test_a_tenant_learns_of_its_own_pins_and_of_no_node(new_node: FakeNode, new_guarded: Plane) -> None:
    await new_guarded.until_state("in_sync")
    token = await create_token(new_guarded, "reader", tenants=["acme"])
    await new_guarded.put_pin("ours", tenant="acme")
    await new_guarded.put_pin("theirs", tenant="rival")
    await cache_pins(new_guarded, new_node, "ours", "theirs")
    await new_guarded.report(new_node, pins=[pin("ours", 0), pin("theirs", 0)], start=COLD)
    await new_guarded.stored_events("name=pin.emptied", 2)
    await new_guarded.stored_events("name=cache.started_cold")
    seen = (await send(new_guarded, token, "GET", "/api/v1/overview")).json()
    assert [(each["name"], each["holds_nothing"]) for each in seen["pins"]] == [("ours", True)]
    assert [new_node["stats"] for new_node in seen["nodes"]] == [None]
    events = [(event["name"], event["fields"].get("pin")) for event in seen["recent"]]
    assert events == [("pin.created", "ours"), ("pin.emptied", "ours")]
    text = msgspec.json.encode(seen).decode()
    assert [word for word in ("theirs", "rival", REASON, "lost_blocks") if word in text] == []
    out = await output(new_guarded, "status", token=token)
    assert out.splitlines()[0] == "ready, quotas enforced, but pin ours holds nothing"
    assert [word for word in ("theirs", "rival", REASON, "cold") if word in out] == []


async def test_status_shows_how_caches_began_and_which_pins_hold_nothing(new_plane: Plane, new_node: FakeNode) -> None:
    now = time.time()
    await new_plane.report(new_node, start=CacheStart("warm", now - 120, blocks=4, bytes=4 << 20))
    assert (await output(new_plane, "status")).splitlines()[:2] == [
        "ready, quotas enforced",
        "cache of node-a: kept 4 blocks (4 MiB) at its start 2 min ago",
    ]
    await new_plane.put_pin("p", tenant="acme")
    await new_plane.report(new_node, start=msgspec.structs.replace(COLD, at=now), pins=[pin("p", 0)])
    code, out, _ = await larder(new_plane, "status")
    since = time.strftime("%H:%M:%SZ", time.gmtime(now))
    assert (code, out.replace("\n  ", " ").splitlines()[:3]) == (
        0,
        [
            "ready, quotas enforced, but the cache of node node-a is cold and pin p holds nothing",
            f"The cache of node node-a is cold since {since}: 1,234 blocks (1,000 B) were lost: {REASON}",
            "Pin p holds nothing (acme): none of its 4 blocks is cached; they are kept as soon as an engine stores "
            "them",
        ],
    )
    assert "in_sync (cache cold)" in await output(new_plane, "nodes", "list")


def overview(**stats: Any) -> dict[str, Any]:
    start = {"kind": "unknown", "at": time.time(), "reason": "", "released": False, "blocks": 0, "bytes": 0,
             "lost_blocks": 0, "lost_bytes": 0, **stats.pop("start", {})}  # fmt: skip
    reported = {"cold": False, "pool": {"blocks": 0, "ready_bytes": 0}, "start": start, **stats}
    return {"nodes": [{"name": "a", "state": "in_sync", "stats": reported}], "pins": []}


@pytest.mark.parametrize(
    ("start", "blocks", "line"),
    [
        ({"kind": "unknown"}, 0, ""),
        ({"kind": "first"}, 0, "cache of a: new, first start 0 s ago"),
        ({"kind": "first", "at": 5.0}, 0, ""),
        ({"kind": "warm", "at": 5.0, "blocks": 4}, 0, ""),
        (
            {"kind": "warm", "blocks": 1, "bytes": 64, "lost_blocks": 1, "lost_bytes": 128, "reason": "torn"},
            1,
            "cache of a: kept 1 block (64 B) at its start 0 s ago, 1 block (128 B) was lost: torn",
        ),
        (
            {"kind": "cold", "released": True, "reason": "released by larder down", "at": 86_400.0 * 5},
            0,
            "cache of a: empty since 1970-01-06 00:00: released by larder down",
        ),
        ({"kind": "cold", "released": True, "at": 5.0}, 1, ""),
        (
            {"kind": "cold", "released": True, "reason": "larder up --fresh"},
            1,
            "cache of a: began empty 0 s ago: larder up --fresh",
        ),
        ({"kind": "cold", "lost_blocks": 4}, 9, ""),
    ],
)
def test_a_line_about_a_cache_shows_exceptions(
    monkeypatch: pytest.MonkeyPatch, start: dict[str, Any], blocks: int, line: str
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    (seen,) = overview(start=start, pool={"blocks": blocks, "ready_bytes": 0})["nodes"]
    assert caches.began(seen) == line
    monkeypatch.undo()
    time.tzset()


async def test_setting_a_pin_without_stored_blocks_is_no_error_and_shows_what_to_expect(
    new_plane: Plane, new_node: FakeNode
) -> None:
    new_node.stats = msgspec.structs.replace(new_node.stats, pins=[pin("p", 0, resolved=2)])
    new = ("pins", "set", "p", "--model", "m", "--tokens", "1,2,3,4,5,6,7,8", "--chunk-tokens", "4")
    note = "note: none of its 2 blocks is cached; they are kept as soon as an engine stores them"
    assert (await output(new_plane, *new)).splitlines()[-1] == note
    new_node.stats = msgspec.structs.replace(new_node.stats, pins=[pin("p", 2, resolved=2)])
    await new_plane.report(new_node, pins=[pin("p", 2, resolved=2)])
    assert note not in await output(new_plane, "pins", "set", "p", "--note", "x")


# ---- larder doctor


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Plane], None]]:
    """A state directory that a Larder holds; call it with the plane that listens on the port of the settings."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LARDER_STATE_DIR", str(state))
    monkeypatch.setenv("LARDER_POOL_BYTES", "4MiB")
    monkeypatch.setenv("LARDER_HTTP_PORT", "0")
    lock = os.open(state / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield lambda plane: monkeypatch.setenv("LARDER_HTTP_PORT", str(plane.http.base_url.port))
    os.close(lock)


async def examined(**environ: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code of `larder doctor`, and its findings about caches, tiers and pins."""
    done = await asyncio.to_thread(run, "doctor", "--json", env={**os.environ, **environ})
    found = [each for each in json.loads(done.stdout)["checks"] if each["name"] in ("cache", "tiers", "pins")]
    return done.returncode, found


async def test_doctor_warns_of_a_cold_cache_and_of_pins_that_hold_nothing(
    here: Callable[[Plane], None], new_plane: Plane, new_node: FakeNode
) -> None:
    here(new_plane)
    pool = PoolStats(ready_bytes=4096, blocks=4)
    await new_plane.report(new_node, pool=pool)
    code, found = await examined()
    assert (code, found) == (0, [
        {"name": "cache", "state": "ok", "message": "cache of node-a holds 4 blocks (4 KiB)", "fix": ""}
    ])  # fmt: skip
    await new_plane.put_pin("p", tenant="acme")
    await new_plane.report(new_node, pool=PoolStats(), start=COLD, pins=[pin("p", 0)])
    code, (cache, empty) = await examined()
    assert (code, cache["state"], empty["state"]) == (0, "warning", "warning")
    assert "1,234 blocks (1,000 B) were lost" in cache["message"]
    assert "docs/operate/runbook.md" in cache["fix"]
    assert empty["message"].startswith("Pin p holds nothing (acme): none of its 4 blocks is cached")
    assert "a-pin-holds-nothing" in empty["fix"]


async def test_doctor_names_tiers_that_are_out_of_service(
    here: Callable[[Plane], None], new_plane: Plane, new_node: FakeNode
) -> None:
    here(new_plane)
    disk = TierStats("disk", "disk", budget_bytes=1 << 30, serves=True)
    await new_plane.report(new_node, tiers=[disk])
    code, (_, tiers) = await examined()
    assert (code, tiers["state"], tiers["message"]) == (0, "ok", "tiers of node-a in service: disk")
    away = msgspec.structs.replace(disk, serves=False, reason="/mnt/nvme0: write: Input/output error")
    await new_plane.report(new_node, tiers=[away])
    code, (tiers, _) = await examined()
    assert (code, tiers["state"]) == (0, "warning")
    assert tiers["message"].startswith("Tier disk of node node-a is out of service")
    assert "/mnt/nvme0: write: Input/output error" in tiers["message"]
    assert "docs/operate/runbook.md" in tiers["fix"]


def test_doctor_waits_a_few_seconds_for_a_silent_server(
    here: Callable[[Plane], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_command, "ASK_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("LARDER_HTTP_PORT", str(silent.getsockname()[1]))
        code, found = examined_here()
    cache = found["cache"]
    assert (code, cache["state"], "did not answer within 0.5 s" in cache["message"]) == (0, "ok", True)


async def test_doctor_reports_in_a_line_why_a_request_failed(
    here: Callable[[Plane], None], socket_dir: Path, new_node: FakeNode
) -> None:
    code, found = await examined()
    assert [(each["state"], each["message"]) for each in found] == [
        ("ok", "not checked: the port of the Larder on this machine is unknown")
    ]
    async with guarding(socket_dir) as plane:
        await plane.until_state("in_sync")
        here(plane)
        code, (cache,) = await examined()
        assert (code, cache["state"], cache["message"].startswith("not checked: ")) == (0, "ok", True)
        token = await create_token(plane, "reader", tenants=["acme"])
        code, (cache,) = await examined(LARDER_TOKEN=token)
        assert cache["message"] == "no node has reported its cache, or this token may not read it"
        code, (cache,) = await examined(LARDER_TOKEN=await create_token(plane, "viewer"))
        assert cache["message"].startswith("cache of node-a holds 0 blocks")


async def test_doctor_sends_no_request_when_no_larder_runs(
    new_plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    port = str(new_plane.http.base_url.port)
    _, found = await examined(LARDER_STATE_DIR=str(tmp_path / "none"), LARDER_HTTP_PORT=port)
    assert found == []
