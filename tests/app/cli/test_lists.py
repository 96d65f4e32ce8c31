"""Lists and records of the command line: omitted items are counted, and omitted options keep their values."""

import asyncio
import json
import re

import pytest

from app.cli.support.api import client
from dataplane.protocol.control.records import QuotaSpec
from tests.app.command import larder
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
    _, out, _ = await larder(plane, "quotas", "list", "--limit", "3", "--sort=-tenant")
    assert out.startswith("Quotas (3 of 5)\n")
    assert out.endswith("\n2 more; --limit N shows more of them\n")
    assert re.findall(r"^t\d", out, re.MULTILINE) == ["t4", "t3", "t2"]
    _, out, _ = await larder(plane, "quotas", "list", "--limit", "3", "--json")
    more = json.loads(out)
    _, out, _ = await larder(plane, "quotas", "list", "--cursor", more["next_cursor"], "--json")
    items = [*more["items"], *json.loads(out)["items"]]
    assert [item["tenant"] for item in items] == [f"t{at}" for at in range(5)]
    _, out, _ = await larder(plane, "audit", "list", "--limit", "2")
    assert out.startswith("Audit (2 of ")
    await plane.put_quota("t4", "2GiB")
    await plane.put_quota("t4", "1GiB")
    assert "limit_bytes 2 GiB -> 1 GiB" in (await larder(plane, "audit", "list", "-o", "wide"))[1]
    noted = {"limit_bytes": "1GiB", "note": "a reason of many words " * 9}
    assert (await plane.http.put("/api/v1/quotas/t4", json=noted, headers={"If-Match": "*"})).is_success
    _, out, _ = await larder(plane, "audit", "list", "--limit", "1")
    assert max(map(len, out.splitlines())) <= 80
    assert re.fullmatch(r" *\d+  [\d-]+ [\d:]+Z  local  .*update quota  t4 .*note .*…", out.splitlines()[2])
    name = (await plane.get("/api/v1/events/history"))["not_kept"]["names"][0]
    assert f"never stored: larder events --follow --name {name}" in (await larder(plane, "events", "--name", name))[1]
    for kind in ("pins", "policies", "ceilings", "tenants", "tokens", "rates"):
        code, _, err = await larder(plane, kind, "list")
        assert (code, err) == (0, "")


async def test_records_show_their_owner_and_their_nodes(plane: Plane, node: FakeNode) -> None:
    code, _, err = await larder(
        plane, "quotas", "set", "acme", "1GiB", "--selector", "zone=a", "--selector", "gpu=h200", "--wait", "30s"
    )
    assert (code, err) == (0, "")
    _, out, _ = await larder(plane, "quotas", "list", "-o", "wide")
    assert "gpu=h200,zone=a" in out
    assert node.quotas == []
    code, out, err = await larder(plane, "quotas", "set", "acme", "--note", "n")
    assert "nodes gpu=h200,zone=a" in out
    code, out, err = await larder(plane, "quotas", "set", "acme", "--selector", "none", "--wait", "30s")
    assert (code, err) == (0, "")
    assert node.quotas == [QuotaSpec("acme", 1 << 30)]
    assert (await larder(plane, "quotas", "set", "acme", "--selector", "zone"))[0] == 2


async def test_a_pin_that_is_set_again_keeps_omitted_fields(plane: Plane, node: FakeNode) -> None:
    new = ("--model", "m", "--tenant", "acme", "--tokens", "1 2 3 4", "--chunk-tokens", "2")
    code, _, err = await larder(
        plane, "pins", "set", "sys", *new, "--ttl", "1h", "--note", "mine", "--selector", "zone=a"
    )
    assert (code, err) == (0, "")
    before = await plane.get("/api/v1/pins/sys")
    code, out, err = await larder(plane, "pins", "set", "sys", "--tokens", "1 2", "--chunk-tokens", "2")
    assert (code, err) == (0, "")
    assert "(kept: model m, tenant acme, strength guaranteed, ends in 60 min, note mine, nodes zone=a)" in out
    after = await plane.get("/api/v1/pins/sys")
    fields = ("model", "tenant", "strength", "note", "selector", "expires_at")
    assert [after[field] for field in fields] == [before[field] for field in fields]
    assert (before["key_count"], after["key_count"]) == (2, 1)
    code, out, err = await larder(plane, "pins", "set", "sys", "--strength", "permanent", "--selector", "none")
    assert (code, err) == (0, "")
    assert out.startswith("sys: 1 chunk of m for acme, permanent, ends never, ")
    assert "resolved 1 chunk, " in out
    code, out, err = await larder(plane, "pins", "set", "sys", "--replace", *new)
    assert (code, err) == (0, "")
    last = await plane.get("/api/v1/pins/sys")
    assert (last["strength"], last["note"], last["expires_at"], last["key_count"]) == ("guaranteed", "", None, 2)
    for wrong in (("sys",), ("sys", "--model", "x"), ("new", "--note", "n"), ("sys", "--chunk-tokens", "2")):
        assert (await larder(plane, "pins", "set", *wrong))[0] == 2
