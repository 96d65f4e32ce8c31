"""Moves between memory and tiers: requests to nodes, audit entries, and moves of a real node."""

from __future__ import annotations

import asyncio
from math import inf, nan
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dataplane.protocol.control.moves import MoveState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.keys import chain
from tests.app.callers import ADMIN, create_token, send
from tests.app.command import larder, output, refused
from tests.app.fake_node import FakeNode
from tests.app.plane import TOKENS, Plane
from tests.app.problems import accepted, fault_paths
from tests.app.real_node import governing
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane as DataPlane
from tests.dataplane.tiering import chains

pytestmark = pytest.mark.anyio
WAIT = "30s"


async def move(plane: Plane, wait: str = WAIT, **body: Any) -> Any:
    return accepted(await plane.http.post(f"/api/v1/actions/move?wait={wait}", json=body), 200)


async def test_nodes_report_their_progress(new_plane: Plane, new_node: FakeNode) -> None:
    begun = await move(new_plane, "0s", tenant="acme", model="m", tokens=TOKENS, chunk_tokens=4, tier="disk")
    (item,) = begun["items"]
    assert (item["node"], item["error"], item["move"]["ended_at"]) == ("node-a", None, None)
    assert (begun["blocks"], begun["bytes"], begun["total"]) == (3, 12288, 1)
    progress = await new_plane.get("/api/v1/actions/move/node-a/1")
    assert (progress["move"]["moved_blocks"], progress["move"]["refused"]) == (2, {"limit": 1})
    ended = await move(new_plane, tenant="acme", tier="memory", release=True, deadline_s=7)
    assert ended["items"][0]["move"]["ended_at"] is not None
    first, second = new_node.moved
    assert first.scope == Scope("acme", "m", None, b"".join(chain(TOKENS, "acme", chunk_tokens=4)))
    assert (first.tier, first.release, first.deadline_s) == ("disk", False, 300.0)
    assert (second.scope, second.tier) == (Scope("acme"), "memory")
    assert (second.release, second.deadline_s) == (True, 7.0)


async def test_a_move_is_audited_and_a_dry_run_is_not(new_plane: Plane, new_node: FakeNode) -> None:
    counted = await move(new_plane, "0s", tenant="acme", tier="disk", dry_run=True)
    assert (counted["items"][0]["move"]["ended_at"] is not None, counted["blocks"]) == (True, 3)
    assert (await new_plane.get("/api/v1/audit?kind=blocks"))["items"] == []
    await move(new_plane, tenant="acme", tier="disk", release=True)
    (entry,) = (await new_plane.get("/api/v1/audit?kind=blocks"))["items"]
    assert (entry["action"], entry["name"]) == ("move", "tenant acme")
    assert (entry["after"]["tier"], entry["after"]["release"]) == ("disk", True)
    assert entry["after"]["source"] == "memory"


async def test_blocks_of_a_tier_are_encoded_again_on_request(new_plane: Plane, new_node: FakeNode) -> None:
    counted = await new_plane.http.post("/api/v1/actions/compress", json={"tier": "disk", "dry_run": True})
    assert (counted.status_code, counted.json()["blocks"]) == (200, 3)
    assert (await new_plane.get("/api/v1/audit?kind=blocks"))["items"] == []
    begun = await new_plane.http.post("/api/v1/actions/compress?wait=30s", json={"tier": "disk", "deadline_s": 9})
    assert begun.json()["items"][0]["move"]["ended_at"] is not None
    sent = new_node.moved[-1]
    assert (sent.scope, sent.tier, sent.compress, sent.release, sent.deadline_s) == (
        Scope(), "disk", True, False, 9.0,
    )  # fmt: skip
    (entry,) = (await new_plane.get("/api/v1/audit?kind=blocks"))["items"]
    assert (entry["action"], entry["name"], entry["after"]["tier"]) == ("compress", "everything", "disk")
    assert (await new_plane.http.post("/api/v1/actions/compress", json={})).status_code == 422
    out = await output(new_plane, "compress", "disk", "--tenant", "acme", "--yes")
    assert out == "node-a: 3 blocks (12 KiB), 2 encoded (8 KiB), 1 refused (limit)\n"
    assert (new_node.moved[-1].scope, new_node.moved[-1].compress) == (Scope("acme"), True)
    code, _, err = await larder(new_plane, "compress", "disk")
    assert (code, "--yes" in err) == (2, True)


async def test_invalid_values_are_refused_by_field(new_plane: Plane, new_node: FakeNode) -> None:
    cases: list[tuple[Any, str]] = [
        ({"tier": "disk"}, "tenant"),
        ({"tenant": "acme"}, "tier"),
        ({"tenant": "acme", "tier": ""}, "tier"),
        ({"tenant": "acme", "tier": "a\0b"}, "tier"),
        ({"tenant": "acme", "tier": "\x1b[31m"}, "tier"),
        ({"tenant": "acme", "tier": "disk", "deadline_s": 0}, "deadline_s"),
        ({"tenant": "acme", "tier": "disk", "deadline_s": 1e9}, "deadline_s"),
        ({"tenant": "a@b", "tier": "disk"}, "tenant"),
        ({"tenant": "acme", "tier": "disk", "source": ""}, "source"),
        ({"tenant": "acme", "tier": "disk", "source": "disk"}, "source"),
        ({"tenant": "acme", "tier": "memory", "source": "disk"}, "source"),
    ]
    for body, path in cases:
        assert fault_paths(await new_plane.http.post("/api/v1/actions/move", json=body)) == [path]
    assert new_node.moved == []
    (item,) = (await move(new_plane, tenant="acme", tier="tape"))["items"]
    assert (item["move"], "no tier 'tape' is open" in item["error"]) == (None, True)
    assert (await new_plane.http.get("/api/v1/actions/move/nobody/1")).status_code == 404


async def test_only_operators_move_and_those_of_a_tenant_only_its_blocks(
    new_node: FakeNode, new_guarded: Plane
) -> None:
    await new_guarded.until_state("in_sync")
    viewer, alerts = await create_token(new_guarded, "viewer"), await create_token(new_guarded, "alerts", "alerts")
    acme = await create_token(new_guarded, "acme", "operator", tenants=["acme"])
    mine = {"tenant": "acme", "tier": "disk"}
    for token, body, status in (
        ("", mine, 401),
        (viewer, mine, 403),
        (alerts, mine, 403),
        (acme, {**mine, "tenant": "other"}, 403),
        (acme, {"model": "m", "tier": "disk"}, 403),
        (acme, {"tokens": TOKENS, "tier": "memory"}, 403),
        (acme, {**mine, "dry_run": True, "tenant": "other"}, 403),
    ):
        answer = await send(new_guarded, token, "POST", "/api/v1/actions/move", json=body)
        assert answer.status_code == status, (body, answer.text)
    assert new_node.moved == []
    accepted(await send(new_guarded, acme, "POST", "/api/v1/actions/move", json=mine), 200)
    assert [each.scope for each in new_node.moved] == [Scope("acme")]
    for body in ({"tenant": "other", "tier": "disk"}, {"model": "m", "tier": "disk"}):
        assert (await send(new_guarded, ADMIN, "POST", "/api/v1/actions/move", json=body)).is_success
    new_node.held_moves = True
    path = "/api/v1/actions/move/node-a"
    assert accepted(await send(new_guarded, acme, "GET", f"{path}/1"), 200)["move"]["tenant"] == "acme"
    assert (await send(new_guarded, viewer, "GET", f"{path}/3")).json()["move"]["tenant"] is None
    for number in (2, 3):
        for method in ("GET", "DELETE"):
            answer = await send(new_guarded, acme, method, f"{path}/{number}")
            assert answer.status_code == 403, "this move is not of the tenant alone"
            assert "'other'" not in answer.text
    assert (await send(new_guarded, viewer, "DELETE", f"{path}/1")).status_code == 403
    assert not any(state.cancelled for state in new_node.moves.values())
    assert (await send(new_guarded, acme, "DELETE", f"{path}/1")).json()["move"]["cancelled"]
    assert [state.cancelled for state in new_node.moves.values()] == [True, False, False]


async def test_claims_of_a_node_about_a_move_are_answered(new_plane: Plane, new_node: FakeNode) -> None:
    """A sum of counters may exceed what JSON can represent."""
    most = (1 << 64) - 1
    new_node.claimed_move = MoveState(
        most, "\0" * 100, most, most, refused={"\x1b[2J": most, "": most}, started_at=inf, ended_at=nan
    )
    for body in ({"tenant": "acme", "tier": "disk"}, {"tenant": "acme", "tier": "disk", "dry_run": True}):
        (item,) = accepted(await new_plane.http.post("/api/v1/actions/move?wait=1s", json=body), 200)["items"]
        assert item["move"]["started_at"] is None
    new_node.claimed_move = msgspec.structs.replace(new_node.claimed_move, number=1, ended_at=1.0)
    out = await output(new_plane, "move", "--to", "disk", "--tenant", "acme", "--yes")
    assert "refused" in out
    assert not any(character in out for character in "\x1b\0"), "texts of nodes do not control the terminal"


async def test_the_command_moves_waits_and_confirms(new_plane: Plane, new_node: FakeNode) -> None:
    out = await output(new_plane, "move", "--to", "disk", "--tenant", "acme", "--dry-run")
    assert out == "node-a: 3 blocks (12 KiB)\n"
    code, _, err = await larder(new_plane, "move", "--to", "disk", "--tenant", "acme")
    assert (code, "--yes" in err) == (2, True)
    out = await output(new_plane, "move", "--to", "disk", "--tenant", "acme", "--release", "--yes")
    assert out == "node-a: 3 blocks (12 KiB), 2 moved (8 KiB), 1 refused (limit)\n"
    assert new_node.moved[-1].release
    code, out, err = await larder(new_plane, "move", "--to", "tape", "--tenant", "acme", "--yes")
    assert (code, "no tier 'tape'" in out) == (1, True)
    assert "not every node moved its blocks; the errors above say why" in err
    code, _, _ = await larder(new_plane, "move", "--from", "disk", "--to", "s3", "--tenant", "acme", "--yes")
    assert (code, new_node.moved[-1].tier, new_node.moved[-1].source) == (0, "s3", "disk")
    err = await refused(new_plane, 1, "move", "--from", "s3", "--to", "s3", "--tenant", "acme", "--yes")
    assert "source: expected another tier than 's3'" in err
    assert "--tenant" in await refused(new_plane, 2, "move", "--to", "disk", "--yes")


async def test_a_move_is_cancelled_audited_and_stays_as_it_is_once_it_has_ended(
    new_plane: Plane, new_node: FakeNode
) -> None:
    new_node.held_moves = True
    begun = await move(new_plane, "0s", tenant="acme", tier="disk", release=True)
    assert begun["items"][0]["move"]["cancelled"] is False
    cancelled = accepted(await new_plane.http.delete("/api/v1/actions/move/node-a/1?wait=20s"), 200)
    state = cancelled["move"]
    assert (state["cancelled"], state["moved_blocks"], state["refused"]) == (True, 0, {"cancelled": 3})
    (entry,) = (await new_plane.get("/api/v1/audit?kind=move"))["items"]
    assert (entry["action"], entry["name"]) == ("cancel", "node-a/1")
    assert entry["after"] == {"node": "node-a", "move": 1, "tier": "disk", "tenant": "acme"}
    again = await new_plane.http.delete("/api/v1/actions/move/node-a/1")
    assert again.json() == cancelled
    assert (await new_plane.get("/api/v1/audit?kind=move"))["total"] == 1, "there was nothing to cancel"
    (event,) = await new_plane.stored_events("name=move.cancelled")
    assert (event["node"], event["fields"]["move"], event["fields"]["tenant"]) == ("node-a", 1, "acme")
    assert (await new_plane.http.delete("/api/v1/actions/move/nobody/1")).status_code == 404


async def test_the_command_cancels_a_move(new_plane: Plane, new_node: FakeNode) -> None:
    new_node.held_moves = True
    await move(new_plane, "0s", tenant="acme", tier="disk")
    code, out, err = await larder(new_plane, "move", "--cancel", "1", "--node", "node-a")
    expected = "node-a: cancelled, 3 blocks (12 KiB), 0 moved (0 B), 3 refused (cancelled)\n"
    assert (code, out) == (0, expected), err
    new_node.held_moves = False
    await move(new_plane, tenant="acme", tier="disk")
    out = await output(new_plane, "move", "--cancel", "2", "--node", "node-a")
    assert out.splitlines()[-1] == "move 2 had ended before"
    for options in (["--cancel", "1"], ["--cancel", "1", "--node", "node-a", "--node", "node-b"], []):
        assert "--cancel" in await refused(new_plane, 2, "move", *options)


@pytest.mark.parametrize(
    "option",
    [["--tenant", "acme"], ["--to", "disk"], ["--from", "disk"], ["--release"], ["--deadline", "5m"], ["--dry-run"]],
)
async def test_the_command_cancels_no_move_with_an_option_that_it_would_ignore(
    new_plane: Plane, new_node: FakeNode, option: list[str]
) -> None:
    new_node.held_moves = True
    await move(new_plane, "0s", tenant="acme", tier="disk")
    error = await refused(new_plane, 2, "move", "--cancel", "1", "--node", "node-a", *option)
    assert f"--cancel cannot be combined with {option[0]}" in error
    assert not any(state.cancelled for state in new_node.moves.values())


async def test_a_real_node_moves_a_tenant_to_disk_and_back(
    data_plane: DataPlane, socket_dir: Path, tmp_path: Path
) -> None:
    keys = make.keys(chains.BLOCKS, "chain")

    def store() -> None:
        with chains.connect(data_plane) as client:
            chains.store(client, keys)

    def ready() -> int:
        with chains.connect(data_plane) as client:
            return client.lookup(keys)

    async with governing(data_plane, socket_dir) as plane:
        parameters = {"directories": [str(tmp_path / "t")], "segment_bytes": 4 << 20}
        tier = {"type": "disk", "budget_bytes": "64MiB", "parameters": parameters, "spill": "off"}
        accepted(await plane.http.put(f"/api/v1/tiers/fast?wait={WAIT}", json=tier), 201)
        await plane.until(lambda: any(t.serves for each in plane.app.parts.fleet.stats() for t in each.tiers), 60.0)
        with chains.connect(data_plane):  # a space without engines and blocks in memory is forgotten
            await asyncio.to_thread(store)
            there = await move(plane, tenant="_default", tier="fast", release=True)
            (item,) = there["items"]
            assert (item["move"]["moved_blocks"], item["move"]["released_blocks"]) == (chains.BLOCKS, chains.BLOCKS)
            assert await asyncio.to_thread(ready) == 0
            back = await move(plane, tenant="_default", tier="memory")
            (item,) = back["items"]
            assert item["error"] is None
            assert (item["move"]["moved_blocks"], item["move"]["refused"]) == (chains.BLOCKS, {})
            assert await asyncio.to_thread(ready) == chains.BLOCKS
