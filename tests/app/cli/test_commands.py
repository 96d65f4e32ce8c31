"""The command line against a running plane: what it sends, what it says, and that nothing is half done."""

import json
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from dataplane.protocol.control.prefixes import Prefix, TracePart
from dataplane.protocol.control.records import QuotaSpec
from dataplane.protocol.control.scopes import Invalidate, Scope
from dataplane.protocol.stats.pins import PinStats
from dataplane.replay.trace import read_trace
from tests.app.command import larder, output, refused
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio


async def test_omitted_options_keep_the_values_of_the_record(plane: Plane, node: FakeNode) -> None:
    code, out, err = await larder(
        plane, "quotas", "set", "acme", "512MiB", "--floor", "64MiB", "--weight", "2", "--store-rate", "1MiB",
        "--wait", "30s",
    )  # fmt: skip
    assert code == 0, err
    assert out.startswith("acme: limit 512 MiB, floor 64 MiB, weight 2, evict_self, enforce; applied")
    out = await output(plane, "quotas", "set", "acme", "--limit", "none", "--mode", "observe", "--wait", "30s")
    assert "kept: floor 64 MiB, weight 2, store rate 1 MiB, on exceed evict_self" in out
    assert node.quotas == [QuotaSpec("acme", None, 64 << 20, 2.0, None, 1 << 20, "evict_self", mode="observe")]
    assert "observe" in await output(plane, "quota", "list")
    await refused(plane, 2, "quotas", "set", "acme")
    await refused(plane, 2, "quotas", "set", "acme", "1", "--limit", "2")
    err = await refused(plane, 1, "quotas", "set", "acme", "--weight", "0")
    assert err == "Error: weight: expected 0.01 to 1000, got 0\n"


async def test_a_policy_is_set_by_parts_and_unset(plane: Plane, node: FakeNode) -> None:
    await output(plane, "policies", "set", "--algorithm", "arc", "--admission")
    marks = ("--high-watermark", "0.9", "--low-watermark", "0.8", "--wait", "30s")
    out = await output(plane, "policies", "set", *marks)
    assert out == "default: arc, second touch below 240 s idle, 90 % to 80 %; applied\n"
    assert (node.policies[0].algorithm, node.policies[0].admission) == ("arc", True)
    assert "node-a" in await output(plane, "policies", "list")
    await output(plane, "policies", "delete", "--wait", "30s")
    assert node.policies == []


async def test_a_listed_prefix_can_be_pinned_by_its_label(plane: Plane, node: FakeNode) -> None:
    keys = sha256(b"key").digest()
    node.prefixes = [Prefix("p-1", "acme", "llama", 1, 9, 4096, 1, 1, 5.0, keys)]
    assert "p-1" in await output(plane, "prefixes")
    ends = ("--ttl", "1h", "--refresh-on-hit", "--wait", "30s")
    out = await output(plane, "pins", "set", "sys", "--prefix", "p-1", *ends)
    assert out.startswith("sys: 1 chunk of llama for acme, guaranteed, ends in 60 min (extended at each hit), ")
    assert node.pins[0].refresh_s == 3600
    assert "after a hit" in await output(plane, "pins", "list", "-o", "wide")
    await refused(plane, 2, "pins", "set", "sys", "--prefix", "p-1", "--tokens", "1")


async def test_actions_require_a_confirmation(plane: Plane, node: FakeNode) -> None:
    code, out, _ = await larder(plane, "invalidate", "--tenant", "acme", typed="n\n")
    assert (code, node.swept) == (1, [])
    demoted, _, err = await larder(plane, "demote", "--tenant", "acme")
    assert (demoted, node.swept) == (2, [])
    assert "not confirmed: without a terminal, pass --yes" in err
    assert "invalidate all blocks of tenant acme on every connected node: 3 blocks (12 KiB) now?" in out
    assert await output(plane, "invalidate", "--tenant", "acme", "--yes") == "node-a: 3 blocks (12 KiB), sweep 1\n"
    assert [(type(message), message.scope) for message in node.swept] == [(Invalidate, Scope(tenant="acme"))]
    node.covered = (0, 0)
    out = await output(plane, "demote", "--model", "nothing", "--yes")
    assert out == "node-a: 0 blocks (0 B), sweep 2\n0 blocks match: there is nothing to demote\n"
    node.unable = True
    code, out, err = await larder(plane, "demote", "--model", "m", typed="y\n")
    assert code == 1
    assert "not known here" in out
    assert "not every node responded" in err
    await refused(plane, 2, "demote", "--yes")


async def test_the_status_shows_the_degraded_blocks_of_a_pin(plane: Plane, node: FakeNode) -> None:
    await plane.put_pin("sys")
    stats = PinStats("sys", resolved=2, resident=2, bytes=9, guaranteed=1, degraded=1)
    await plane.report(node, pins=[stats])
    assert "guaranteed (1 degraded)" in await output(plane, "status")
    await plane.until_state("in_sync")
    assert "degraded: beyond the pin budget" in await output(plane, "pins", "list")


async def test_a_pool_is_resized(plane: Plane, node: FakeNode) -> None:
    pool = msgspec.structs.replace(node.stats.pool, max_blocks=1000)
    await plane.report(node, pool=pool)
    assert await output(plane, "nodes", "resize", "node-a", "2GiB") == (
        "node-a: the pool holds 2 GiB\n"
        "in at most 1000 blocks, a number that is fixed when the node starts: [dataplane] max_blocks\n"
    )
    assert "the pool cannot shrink" in await refused(plane, 1, "nodes", "resize", "node-a", "1MiB")
    await refused(plane, 2, "nodes", "resize", "node-a")
    await refused(plane, 2, "nodes", "resize", "node-a", "1MiB", "--forget")
    out = await output(plane, "nodes", "resize", "node-a", "--forget")
    assert out == "node-a: the requested size is forgotten; the pool keeps its size until the node stops\n"
    err = await refused(plane, 4, "nodes", "resize", "node-a", "--forget")
    assert err == "Error: there is no requested pool size of node 'node-a'\n"
    assert "node-a" in await output(plane, "nodes", "list")


async def test_a_trace_is_written_whole_or_not_at_all(plane: Plane, node: FakeNode, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    line = json.dumps({"timestamp": 1, "hash_ids": [1, 2]}).encode() + b"\n"
    node.trace = [line * 3, line * 2]
    out = await output(plane, "trace", "record", str(file), "--since", "10m")
    assert file.stat().st_mode & 0o777 == 0o600
    assert out == f"{file}: 5 requests of node-a; 'larder replay {file}' replays them\n"
    assert len(read_trace(file)) == 5
    node.answers = lambda message: TracePart(getattr(message, "nonce", ""), line, 3)
    err = await refused(plane, 1, "trace", "record", str(file))
    assert err == f"Error: {file} is there already; --force replaces it\n"
    assert "did not answer to the end" in await refused(plane, 6, "trace", "record", str(file), "--force")
    assert len(read_trace(file)) == 5
    node.answers, node.trace = None, []
    assert "recorded no request" in await refused(plane, 1, "trace", "record", str(tmp_path / "none.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]
    await refused(plane, 1, "trace", "record", str(tmp_path / "missing" / "t"))


async def test_documents_with_any_size_are_compared_and_applied(plane: Plane, node: FakeNode, tmp_path: Path) -> None:
    document = tmp_path / "larder.yaml"
    sizes = ("1000MiB", "1001 KiB", "1023GiB", "1073741825", "1PiB")
    document.write_text(
        msgspec.json.encode(
            {
                "apiVersion": "larder/v1",
                "quotas": [{"tenant": f"t{at}", "limit_bytes": size} for at, size in enumerate(sizes)],
            }
        ).decode()
    )
    for command in (("diff",), ("apply", "--dry-run")):
        code, _, err = await larder(plane, *command, "-f", str(document))
        assert (code, err) == (3, "")
    out = await output(plane, "apply", "-f", str(document), "--yes")
    for size in ("1000 MiB", "1001 KiB", "1023 GiB", "1073741825 bytes", "1 PiB"):
        assert f"limit_bytes: {size}\n" in out
    out = await output(plane, "quotas", "list")
    assert "e+0" not in out
    assert "1,000 MiB" in out


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e400"])
async def test_numbers_that_are_not_finite_are_refused_by_their_option(shared_plane: Plane, number: str) -> None:
    for option, arguments in (
        ("--weight", ("quotas", "set", "acme")),
        ("--high-watermark", ("policies", "set")),
        ("--admission-idle", ("policies", "set")),
        ("--weight", ("ceilings", "set", "acme")),
        ("--tokens-per-s", ("rates", "set", "h200", "--model", "m")),
    ):
        err = await refused(shared_plane, 2, *arguments, f"{option}={number}")
        assert option in err
        assert "expected a " in err


async def test_neither_an_empty_name_nor_dots_are_ever_the_collection(plane: Plane, node: FakeNode) -> None:
    for kind in ("quotas", "pins", "nodes", "policies", "ceilings", "tenants"):
        err = await refused(plane, 2, kind, "get", "")
        of = {"quotas": "tenant", "ceilings": "tenant", "tenants": "tenant", "nodes": "node"}.get(kind)
        assert f"expected {f'the name of a {of}' if of else 'a name'}, got an empty text" in err
        assert ("_default" in err) == (of == "tenant")
    for verb in (("quotas", "set", "", "--limit", "1GiB"), ("quotas", "delete", ""), ("pins", "delete", "")):
        await refused(plane, 2, *verb)
    for name in (".", ".."):
        assert "cannot be used in a URL" in await refused(plane, 1, "quotas", "set", name, "--limit", "1GiB")
        for asking in ("get", "delete"):
            assert f"no quota for tenant '{name}'" in await refused(plane, 4, "quotas", asking, name)
    assert "in UTF-8" in await refused(plane, 2, "quotas", "get", "a\udcff")
    assert "in UTF-8" in await refused(plane, 1, "quotas", "set", "acme", "--note", "a\udcff", "--limit", "1GiB")
