"""Metrics of node activity: with a real client, a hostile client, and nodes of older releases."""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial

import msgspec
import numpy as np
import pytest

from dataplane.client import Client
from dataplane.client.attachment import Attachment
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.events import Event
from dataplane.protocol.stats.histogram import Histogram
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pins import PinStats
from dataplane.protocol.stats.pool import Evictions
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.fake_node import FakeNode
from tests.app.plane import WAIT_S, Plane
from tests.dataplane import factories as make
from tests.deploy.tools import checked

pytestmark = pytest.mark.anyio
PAGE = 4096
NEW_FIELDS = ("operations", "evicted", "evicted_idle", "block_lifetime", "reuse_gap", "events_dropped", "process")


@pytest.fixture(scope="module")
def data_plane_settings() -> dict[str, str]:
    return {"pool_bytes": "2MiB"}


async def scrape(plane: Plane) -> dict[tuple[str, ...], float]:
    """Return values by name and labels other than `node`, in the order of label names."""
    return {
        (s.name, *(value for name, value in sorted(s.labels.items()) if name != "node")): s.value
        for s in await plane.samples()
    }


async def until(plane: Plane, name: str, *labels: str, value: float) -> dict[tuple[str, ...], float]:
    deadline = time.monotonic() + WAIT_S
    while (found := await scrape(plane)).get((name, *labels)) != value:
        assert time.monotonic() < deadline, (name, labels, found.get((name, *labels)))
        await asyncio.sleep(0.05)
    return found


async def test_operations_of_a_client_are_in_a_scrape_and_a_hostile_one_does_not_change_totals(
    governed: Plane, engine: Client
) -> None:
    first, second = make.keys(400, "first"), make.keys(400, "second")
    for keys in (first, second):  # the pool holds 512 blocks
        with engine.reserve(keys, PAGE, tenant="acme") as reservation:
            reservation.commit()
    for _ in range(5):
        assert engine.lookup(second) == 400
    assert len(engine.acquire(second)) == 400
    count = "larder_engine_operation_seconds_count"
    await until(governed, count, "lookup", value=5)
    await until(governed, "larder_hit_bytes_total", "acme", "memory", value=400 * PAGE)
    found = await until(governed, count, "acquire", value=1)
    assert (found[count, "reserve"], found[count, "commit"]) == (2, 2)
    assert found["larder_engine_operation_seconds_sum", "commit"] > 0
    evicted = found["larder_evicted_blocks_total", "room"]
    assert evicted == found["larder_tenant_evicted_blocks_total", "room", "acme"] > 0
    assert found["larder_evicted_bytes_total", "room"] == evicted * PAGE
    assert found["larder_evicted_idle_seconds_count",] == found["larder_block_lifetime_seconds_count",] == evicted
    assert found["larder_block_reuse_gap_seconds_count",] == 400
    assert found["larder_hit_tokens_total", "acme", "memory"] == 400 * make.space().block_tokens
    assert found["larder_process_resident_bytes", "data"] > 1 << 20
    assert found["larder_process_cpu_seconds_total", "data"] > 0
    assert found["larder_process_open_fds", "data"] > 5
    assert found["larder_event_loop_lag_seconds_count", "data"] > 0
    (build,) = [key for key in found if key[0] == "larder_build_info" and "data" in key]
    assert found[build] == 1
    check = partial(checked, "promtool", "check", "metrics", text=(await governed.http.get("/metrics")).text)
    assert await asyncio.to_thread(check) == ""

    before = found
    attachment = engine._memory.current
    assert isinstance(attachment, Attachment)
    noise = np.random.default_rng(1)
    rounds, deadline = 0, time.monotonic() + WAIT_S
    while rounds < 4 or not found["larder_ring_entries_rejected_total",]:
        assert time.monotonic() < deadline, "no entry was rejected"
        attachment.area.operations[:] = noise.integers(0, 2**64 - 1, attachment.area.operations.shape, np.uint64)
        await asyncio.sleep(0.6)
        found = await scrape(governed)
        rounds += 1
    seconds = {key: value for key, value in found.items() if key[0].startswith("larder_engine_operation")}
    assert all(math.isfinite(value) and value >= before[key] for key, value in seconds.items())
    assert found[count, "lookup"] < 1e6
    with engine.reserve(make.keys(1), PAGE) as reservation:
        assert reservation.commit().blocks == 1


async def test_metrics_that_an_earlier_release_does_not_report_are_omitted(plane: Plane, node: FakeNode) -> None:
    raw = msgspec.msgpack.decode(encode(node.stats))
    for name in NEW_FIELDS:
        del raw[name]
    old = decode(decoder(Event), msgspec.msgpack.encode(raw))
    assert isinstance(old, NodeStats)
    node.stats = msgspec.structs.replace(old, refused={"pool_full": 3})
    found = await until(plane, "larder_refused_blocks_total", "pool_full", value=3)
    assert not any(key[0].startswith(("larder_engine_operation", "larder_evicted")) for key in found)
    assert {key[0] for key in found if "data" in key} == {"larder_otel_spans_dropped_total"}


async def test_reasons_of_other_tenants_are_summed_and_malformed_histograms_omitted(
    plane: Plane, node: FakeNode
) -> None:
    node.stats = msgspec.structs.replace(
        node.stats,
        tenants=[
            TenantStats(f"t{n:02}", bytes=99 - n, evicted={"room": 1}, refused={"over_limit": 2}) for n in range(51)
        ]
        + [TenantStats("t51", evicted={"room": 1}, hit_tokens=9, tier_hit_tokens={"disk": 5, "/other": 3})],
        other_tenants=TenantStats("other", evicted={"room": 5}, hit_tokens=9, tier_hit_tokens={"disk": 2}),
        operations={
            "lookup": Histogram([0.1, 0.2], [1, 2], 0.3),
            "acquire": Histogram([0.2, 0.1], [1, 2, 3], 0.3),
            "reserve": Histogram([0.1], [-1, 2], 0.3),
            "commit": Histogram([0.1], [1, 2], 0.3),
        },
        evicted={"limit": Evictions(3, 4096)},
        events_dropped={"blocks.stored": 4},
        pins=[PinStats(f"p{n:02}", resolved=99 - n, resident=n, bytes=0, guaranteed=0) for n in range(52)],
    )
    found = await until(plane, "larder_tenant_evicted_blocks_total", "room", "other", value=7)
    assert found["larder_tenant_refused_blocks_total", "over_limit", "other"] == 2
    hits = {tier: found["larder_hit_tokens_total", "other", tier] for tier in ("memory", "disk", "other")}
    assert hits == {"memory": 8, "disk": 7, "other": 3}
    assert found["larder_evicted_bytes_total", "limit"] == 4096
    assert found["larder_events_dropped_total", "blocks.stored", "data"] == 4
    counts = {key[1]: value for key, value in found.items() if key[0] == "larder_engine_operation_seconds_count"}
    assert counts == {"commit": 3}
    assert (found["larder_pin_blocks", "p00"], found["larder_pin_blocks", "other"]) == (99, 49 + 48)
    assert (found["larder_pin_resident_blocks", "p03"], found["larder_pin_resident_blocks", "other"]) == (3, 101)
    assert sum(key[0] == "larder_pin_blocks" for key in found) == 51
