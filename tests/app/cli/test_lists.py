"""Lists and records of the command line: omitted items are counted, and omitted options keep their values."""

import asyncio
import json
import re

import pytest

from app.cli.support.api import client
from dataplane.protocol.control.records import QuotaSpec
from tests.app.command import output, refused
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio


async def test_a_list_is_complete_and_shows_the_number_beyond_the_limit(
    plane: Plane, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(5):
        await plane.put_quota(f"t{at}", 1 << 20)
    url = str(plane.http.base_url)
    monkeypatch.setattr(client, "PAGE", 2)
    answer = await asyncio.to_thread(client.every, url, "/api/v1/quotas")
    assert [item["tenant"] for item in answer["items"]] == [f"t{at}" for at in range(5)]
    assert (answer["total"], answer["next_cursor"]) == (5, "")
    out = await output(plane, "quotas", "list", "--limit", "3", "--sort=-tenant")
    assert out.startswith("Quotas (3 of 5)\n")
    assert out.endswith("\n2 more; --limit N shows more of them\n")
    assert re.findall(r"^t\d", out, re.MULTILINE) == ["t4", "t3", "t2"]
    out = await output(plane, "quotas", "list", "--limit", "3", "--json")
    more = json.loads(out)
    out = await output(plane, "quotas", "list", "--cursor", more["next_cursor"], "--json")
    items = [*more["items"], *json.loads(out)["items"]]
    assert [item["tenant"] for item in items] == [f"t{at}" for at in range(5)]
    assert (await output(plane, "audit", "list", "--limit", "2")).startswith("Audit (2 of ")
    await plane.put_quota("t4", "2GiB")
    await plane.put_quota("t4", "1GiB")
    assert "limit_bytes 2 GiB -> 1 GiB" in await output(plane, "audit", "list", "-o", "wide")
    noted = {"limit_bytes": "1GiB", "note": "a reason of many words " * 9}
    assert (await plane.http.put("/api/v1/quotas/t4", json=noted, headers={"If-Match": "*"})).is_success
    out = await output(plane, "audit", "list", "--limit", "1")
    assert max(map(len, out.splitlines())) <= 80
    assert re.fullmatch(r" *\d+  [\d-]+ [\d:]+Z  local  .*update quota  t4 .*note .*…", out.splitlines()[2])
    name = (await plane.get("/api/v1/events/history"))["not_kept"]["names"][0]
    assert f"never stored: larder events --follow --name {name}" in await output(plane, "events", "--name", name)
    for kind in ("pins", "policies", "ceilings", "tenants", "tokens", "rates"):
        await output(plane, kind, "list")


async def test_records_show_their_owner_and_their_nodes(plane: Plane, node: FakeNode) -> None:
    await output(
        plane, "quotas", "set", "acme", "1GiB", "--selector", "zone=a", "--selector", "gpu=h200", "--wait", "30s"
    )
    assert "gpu=h200,zone=a" in await output(plane, "quotas", "list", "-o", "wide")
    assert node.quotas == []
    assert "nodes gpu=h200,zone=a" in await output(plane, "quotas", "set", "acme", "--note", "n")
    await output(plane, "quotas", "set", "acme", "--selector", "none", "--wait", "30s")
    assert node.quotas == [QuotaSpec("acme", 1 << 30)]
    await refused(plane, 2, "quotas", "set", "acme", "--selector", "zone")


async def test_a_pin_that_is_set_again_keeps_omitted_fields(plane: Plane, node: FakeNode) -> None:
    new = ("--model", "m", "--tenant", "acme", "--tokens", "1 2 3 4", "--chunk-tokens", "2")
    await output(plane, "pins", "set", "sys", *new, "--ttl", "1h", "--note", "mine", "--selector", "zone=a")
    before = await plane.get("/api/v1/pins/sys")
    out = await output(plane, "pins", "set", "sys", "--tokens", "1 2", "--chunk-tokens", "2")
    assert "(kept: model m, tenant acme, strength guaranteed, ends in 60 min, note mine, nodes zone=a)" in out
    after = await plane.get("/api/v1/pins/sys")
    fields = ("model", "tenant", "strength", "note", "selector", "expires_at")
    assert [after[field] for field in fields] == [before[field] for field in fields]
    assert (before["key_count"], after["key_count"]) == (2, 1)
    out = await output(plane, "pins", "set", "sys", "--strength", "permanent", "--selector", "none")
    assert out.startswith("sys: 1 chunk of m for acme, permanent, ends never, ")
    assert "resolved 1 chunk, " in out
    await output(plane, "pins", "set", "sys", "--replace", *new)
    last = await plane.get("/api/v1/pins/sys")
    assert (last["strength"], last["note"], last["expires_at"], last["key_count"]) == ("guaranteed", "", None, 2)
    for wrong in (("sys",), ("sys", "--model", "x"), ("new", "--note", "n"), ("sys", "--chunk-tokens", "2")):
        await refused(plane, 2, "pins", "set", *wrong)
