"""The tier of pins: recorded, pushed, applied and exported like any other field, and what nodes say of GPU copies."""

import re
from typing import Any

import msgspec
import pytest

from dataplane.protocol.events import GpuCopyPoolFailed
from dataplane.protocol.stats.pins import GpuCopyPoolStats, PinStats
from tests.app.callers import create_token, send
from tests.app.command import larder, output, refused
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane, effective

pytestmark = pytest.mark.anyio

DEVICE = "GPU-7717ca5e-0000-4000-8000-000000000001"
CARD = "H200 of this test"


def pool(**more: Any) -> GpuCopyPoolStats:
    numbers = {"capacity_bytes": 4096, "used_bytes": 2048, "gpu_copies": 2, "gpu_copy_bytes": 2000, "wanted": 2,
               "copying": 0, **more}  # fmt: skip
    return GpuCopyPoolStats(device=DEVICE, name=CARD, **numbers)


def gpu_pin(name: str, gpu_copies: int, resident: int = 2, **more: Any) -> PinStats:
    of = {
        "resolved": 2,
        "bytes": resident * 9,
        "guaranteed": resident,
        "tier": "gpu",
        "gpu_copy_bytes": gpu_copies * 9,
        "gpu_copies_wanted": resident,
        **more,
    }
    return PinStats(name, resident=resident, gpu_copies=gpu_copies, **of)


def effect(pin: dict[str, Any], node: str | None = None) -> tuple[str, str]:
    """Status and reason of `Effective`, over all nodes or on one."""
    found = effective(pin, node)
    return found["status"], found["reason"]


async def patched(plane: Plane, name: str, **fields: Any) -> Any:
    return await plane.http.patch(f"/api/v1/pins/{name}?wait=30s", json=fields, headers={"If-Match": "*"})


async def test_a_pin_is_in_the_pool_alone_unless_its_tier_is_gpu_and_a_change_is_pushed(
    plane: Plane, node: FakeNode
) -> None:
    first = await plane.put_pin("p")
    assert (first["tier"], node.pins[0].tier) == ("host", "host")
    assert "tier" not in msgspec.msgpack.decode(node.received[-1].body)[0]
    second = await plane.put_pin("p", tier="gpu")
    assert (second["tier"], second["generation"], node.pins[0].tier) == ("gpu", first["generation"] + 1, "gpu")
    assert second["summary"] == "resolved 2 chunks, 0 resident, 0 B, 0 GPU copies"
    assert (await plane.put_pin("p", tier="gpu"))["generation"] == second["generation"]
    extended = await plane.put_pin("ends", tier="gpu", ttl_s=60)
    answer = await plane.http.post("/api/v1/pins/ends:extend", json={"ttl_s": 600})
    assert (answer.json()["tier"], answer.json()["generation"]) == ("gpu", extended["generation"] + 1)
    back = await patched(plane, "p", tier=None)
    assert (back.json()["tier"], {pin.name: pin.tier for pin in node.pins}) == ("host", {"p": "host", "ends": "gpu"})
    (entry,) = (await plane.get("/api/v1/audit?limit=1"))["items"]
    assert (entry["before"]["tier"], entry["after"]["tier"]) == ("gpu", "host")
    assert (await patched(plane, "p", tier="gpu")).json()["tier"] == "gpu"
    assert (await patched(plane, "p", note="kept")).json()["tier"] == "gpu"
    shown = {pin["name"]: pin["tier"] for pin in (await plane.get("/api/v1/snapshot"))["pins"]["items"]}
    assert shown == {"p": "gpu", "ends": "gpu"}


async def test_reports_of_gpu_copies_are_summed_and_missing_ones_shown(plane: Plane, node: FakeNode) -> None:
    await plane.put_pin("p", tier="gpu")
    await plane.report(node, pins=[gpu_pin("p", 0, resident=0)], gpu_copy_pools=[])
    pin = await plane.get("/api/v1/pins/p")
    assert (effect(pin), effect(pin, "node-a")) == (("False", "NoGpuCopyPool"), ("False", "NoGpuCopyPool"))
    assert "keeps GPU copies: gpu_pool_bytes is 0 there;" in pin["status"]["conditions"][-1]["message"]
    assert pin["status"]["applied"] is True
    await plane.report(node, pins=[gpu_pin("p", 1)], gpu_copy_pools=[pool(gpu_copies=1)])
    pin = await plane.get("/api/v1/pins/p")
    assert (effect(pin), pin["gpu_copies"], pin["gpu_copy_bytes"]) == (("False", "FewGpuCopies"), 1, 9)
    since = pin["status"]["conditions"][-1]["since"]
    assert (
        "not all resident blocks of p have a GPU copy on each GPU of node-a whose engines read them"
        in pin["status"]["conditions"][-1]["message"]
    )
    assert pin["nodes"]["node-a"] == {
        "resolved": 2,
        "resident": 2,
        "bytes": 18,
        "gpu_copies": 1,
        "gpu_copy_bytes": 9,
        "gpu_copies_wanted": 2,
        "tiers": {},
        "only_in_tiers": 0,
        "not_loaded": "",
    }
    await plane.report(node, pins=[gpu_pin("p", 4)], gpu_copy_pools=[pool(), pool()])
    pin = await plane.get("/api/v1/pins/p")
    assert (effect(pin), pin["summary"].endswith("4 GPU copies")) == (("True", "Effective"), True)
    await plane.report(node, pins=[gpu_pin("p", 1)], gpu_copy_pools=[pool()])
    assert (await plane.get("/api/v1/pins/p"))["status"]["conditions"][-1]["since"] > since
    await plane.report(node, pins=[gpu_pin("p", 3, gpu_copies_wanted=4)], gpu_copy_pools=[pool(), pool()])
    pin = await plane.get("/api/v1/pins/p")
    assert (effect(pin), pin["gpu_copies_wanted"]) == (("False", "FewGpuCopies"), 4)
    await plane.report(node, pins=[gpu_pin("p", 0, gpu_copies_wanted=0)], gpu_copy_pools=[pool()])
    assert effect(await plane.get("/api/v1/pins/p")) == ("True", "Effective")
    await plane.report(node, pins=[gpu_pin("p", 0, tier="host")], gpu_copy_pools=[])
    assert effect(await plane.get("/api/v1/pins/p")) == ("True", "Effective")


async def test_reasons_why_a_gpu_has_no_gpu_copies_are_shown(plane: Plane, node: FakeNode) -> None:
    await plane.put_pin("p", tier="gpu")
    refused = pool(problem="the driver is too old", gpu_copies=0, used_bytes=0)
    for pools, size, why in (
        ([], 0, "gpu_pool_bytes is 0 there"),
        ([], 4096, "no engine on a GPU has requested any"),
        ([refused, refused], 4096, "the driver is too old"),
    ):
        unwanted = [gpu_pin("p", 0, gpu_copies_wanted=0)]
        await plane.report(node, pins=unwanted, gpu_copy_pools=pools, gpu_copy_pool_bytes=size)
        pin = await plane.get("/api/v1/pins/p")
        assert effect(pin) == ("False", "NoGpuCopyPool")
        expected = f"no GPU of node-a keeps GPU copies: {why}; blocks are read from the node's pool"
        assert pin["status"]["conditions"][-1]["message"].endswith(expected)
    await plane.report(node, pins=[gpu_pin("p", 1)], gpu_copy_pools=[refused, pool(readers=1)])
    assert effect(await plane.get("/api/v1/pins/p")) == ("False", "FewGpuCopies")
    await plane.report(node, pins=[gpu_pin("p", 2)], gpu_copy_pools=[pool(readers=1)])
    assert effect(await plane.get("/api/v1/pins/p")) == ("True", "Effective")
    (shown,) = (await plane.get("/api/v1/nodes"))["items"]
    assert shown["stats"]["gpu_copy_pool_bytes"] == 4096


async def test_machines_without_gpus_lack_nothing_while_another_has_the_gpu_copies(
    new_node: FakeNode, new_guarded: Plane
) -> None:
    await new_guarded.until_state("in_sync")
    await new_guarded.put_pin("p", tier="gpu")
    parts = new_guarded.app.parts
    bare = msgspec.structs.replace(new_node.stats_now(), node="node-b", pins=[gpu_pin("p", 0)])
    second = type(parts.fleet.nodes["node-a"])("node-b", "ipc:///nowhere", observed=dict(new_node.observed))
    parts.fleet.nodes["node-b"] = second
    parts.fleet.heartbeat("node-b", bare, 0.0, bare.at)
    await new_guarded.report(new_node, pins=[gpu_pin("p", 2)], gpu_copy_pools=[pool()])
    status = parts.foundation.progress.status("pins", 1, name="p")
    effective = {name: on.conditions[1] for name, on in status.nodes.items()}
    assert {name: (each.status, each.reason) for name, each in effective.items()} == {
        "node-a": ("True", "Effective"),
        "node-b": ("True", "Effective"),
    }
    await new_guarded.report(new_node, pins=[gpu_pin("p", 0)], gpu_copy_pools=[])
    status = parts.foundation.progress.status("pins", 1, name="p")
    assert {on.conditions[1].reason for on in status.nodes.values()} == {"NoGpuCopyPool"}


async def test_pools_on_gpus_are_shown_with_their_node_to_unlimited_callers_alone(
    new_node: FakeNode, new_guarded: Plane
) -> None:
    await new_guarded.until_state("in_sync")
    await new_guarded.put_pin("p", tenant="acme", tier="gpu")
    await new_guarded.report(
        new_node, pins=[gpu_pin("p", 1)], gpu_copy_pools=[pool(problem="out of memory", readers=3)]
    )
    await new_node.publish(GpuCopyPoolFailed(1.0, DEVICE, "out of memory"))
    assert (await new_guarded.until_event("gpu_copy_pool.failed"))["reason"] == "out of memory"
    (shown,) = (await new_guarded.get("/api/v1/nodes/node-a"))["stats"]["gpu_copy_pools"]
    assert (shown["device"], shown["problem"], shown["readers"]) == (DEVICE, "out of memory", 3)
    token = await create_token(new_guarded, "op", "operator", tenants=["acme"])
    for path in ("/api/v1/nodes", "/api/v1/nodes/node-a", "/api/v1/overview", "/api/v1/pins/p"):
        answer = await send(new_guarded, token, "GET", path)
        assert answer.status_code == 200
        assert [text for text in (DEVICE, CARD, "out of memory") if text in answer.text] == [], path
    pin = (await send(new_guarded, token, "GET", "/api/v1/pins/p")).json()
    assert (pin["tier"], pin["gpu_copies"], effect(pin)) == ("gpu", 1, ("False", "FewGpuCopies"))


async def test_a_scrape_has_each_gpu_and_the_pins_with_most_gpu_copies(plane: Plane, node: FakeNode) -> None:
    pins = [gpu_pin(f"p{number:02}", number, resident=60) for number in range(60)]
    pins += [gpu_pin("other", 7, resident=1), gpu_pin("plain", 0, tier="host")]
    counters = {"copied_blocks": 5, "copied_bytes": 50, "evicted_blocks": 4, "read_blocks": 3, "failed_copies": 1}
    await plane.report(
        node, pins=pins, gpu_copy_pools=[pool(problem="out of memory", leaving_bytes=11, readers=2, **counters)]
    )
    samples = await plane.samples()
    of = {"node": "node-a", "device": DEVICE}
    numbers = {s.name.removeprefix("larder_gpu_copy_pool_"): s.value for s in samples if s.labels == of}
    assert numbers == {
        "capacity_bytes": 4096, "used_bytes": 2048, "gpu_copies": 2, "gpu_copy_bytes": 2000, "wanted_blocks": 2,
        "copying_blocks": 0, "leaving_bytes": 11, "readers": 2, "problem": 1, "copied_blocks_total": 5,
        "copied_bytes_total": 50, "evicted_blocks_total": 4, "read_blocks_total": 3, "failed_copies_total": 1,
    }  # fmt: skip
    gpu_copies = {s.labels["pin"]: s.value for s in samples if s.name == "larder_pin_gpu_copies"}
    assert (len(gpu_copies), gpu_copies["p59"], gpu_copies["other"]) == (51, 59, sum(range(10)) + 7)
    assert "p09" not in gpu_copies


async def test_the_command_line_sets_keeps_lists_and_explains_the_tier(plane: Plane, node: FakeNode) -> None:
    pin = ("--model", "m", "--tokens", "1,2,3,4", "--chunk-tokens", "4")
    out = await output(plane, "pins", "set", "p", "--replace", *pin, "--tier", "gpu", "--wait", "30s")
    assert "guaranteed, also on GPUs, ends never" in out
    assert node.pins[0].tier == "gpu"
    code, out, _ = await larder(plane, "pins", "set", "p", *pin, "--note", "n", "--wait", "30s")
    assert (code, "tier gpu" in out, node.pins[0].tier) == (0, True, "gpu")
    await plane.report(node, pins=[gpu_pin("p", 0)], gpu_copy_pools=[])
    out = await output(plane, "pins", "set", "p", "--note", "again", "--wait", "30s")
    assert "not effective: on 0 of 1 nodes; no GPU of node-a keeps GPU copies" in out
    assert "no GPU keeps GPU copies: gpu_pool_bytes is 0" in await output(plane, "nodes", "gpus")
    for used, state in ((4096, "full"), (2048, "not all fit")):
        await plane.report(node, pins=[gpu_pin("p", 1)], gpu_copy_pools=[pool(wanted=9, used_bytes=used)])
        assert state in await output(plane, "nodes", "gpus")
    await plane.report(
        node, pins=[gpu_pin("p", 1)], gpu_copy_pools=[pool(problem="out of memory", leaving_bytes=1 << 20)]
    )
    for command in (("pins", "-o", "wide"), ("pins", "--tier", "gpu", "-o", "wide"), ("status",)):
        assert "gpu (1 GPU copy)" in await output(plane, *command), command
    assert not re.search(r"^p\b", await output(plane, "pins", "list", "--tier", "host"), re.MULTILINE)
    for command in (("status",), ("nodes", "list")):  # type: ignore[assignment]
        assert f"node-a GPU copies on {CARD} ({DEVICE}): out of memory" in await output(plane, *command)
    out = await output(plane, "nodes", "gpus", "node-a", "-o", "wide")
    assert [text for text in (DEVICE, CARD, "2/2", "1 MiB", "out of memory") if text not in out] == []
    assert '"device": "GPU-' in await output(plane, "nodes", "gpus", "--json")
    assert "'disk' is not one of 'host', 'gpu'" in await refused(plane, 2, "pins", "set", "p", "--tier", "disk")
    await output(plane, "pins", "set", "p", "--tier", "host", "--wait", "30s")
    assert [pin.tier for pin in node.pins] == ["host"]
