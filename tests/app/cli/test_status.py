"""`larder status`: for callers of all tenants and of one, and while something is missing."""

from pathlib import Path

import pytest

from app.cli.commands.views.status import head
from app.cli.support.printing import show
from app.settings import Settings
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.callers import ADMIN, create_token, guarding
from tests.app.command import larder, output
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane, serving

pytestmark = pytest.mark.anyio


async def test_callers_of_a_tenant_have_a_status_of_their_own(socket_dir: Path, new_node: FakeNode) -> None:
    async with guarding(socket_dir) as plane:
        await plane.until_state("in_sync")
        await plane.put_quota("acme", "1000MiB")
        await plane.put_quota("rival", "1GiB")
        token = await create_token(plane, "reader", tenants=["acme"])
        out = await output(plane, "status", token=token)
        assert out.startswith("ready, ")
        assert "your tenants: pool 0 B of " in out
        assert "node-a" in out
        assert "1,000 MiB" in out
        assert "rival" not in out
        code, out, _ = await larder(plane, "status", token=ADMIN)
        assert (code, "rival" in out, "your tenants" in out) == (0, True, False)


async def test_the_status_shows_why_it_is_not_ready(settings: Settings) -> None:
    async with serving(settings) as plane:
        code, out, _ = await larder(plane, "status")
        why = (await plane.http.get("/healthz/fleet")).json()["detail"]
        assert (code, out.splitlines()[0]) == (0, f"not ready ({why}), quotas not enforced")


async def test_refusals_are_shown_before_notes(plane: Plane, node: FakeNode) -> None:
    node.stats.tenants = [TenantStats("acme", bytes=89 << 20, refused_blocks=10_449, refused={"over_limit": 10_449})]
    quota = {"limit_bytes": "96MiB", "note": "conversations may use half of the pool, and more at night"}
    assert (await plane.http.put("/api/v1/quotas/acme", json=quota)).is_success
    await plane.until_state("in_sync")
    await plane.events_flow()
    assert "10,449 (over_limit)" in await output(plane, "status")


async def test_unreported_numbers_are_not_shown_as_zero(plane: Plane, capsys: pytest.CaptureFixture[str]) -> None:
    overview = await plane.get("/api/v1/overview")
    silent = [{**node, "stats": None} for node in overview["nodes"]]
    head({**overview, "nodes": silent}, "", is_limited=False)
    assert "pool: not known, because no node has reported yet" in capsys.readouterr().out


def test_an_answer_of_a_release_without_tiers_is_of_the_host_and_has_no_gpus(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert show.tier({"name": "p", "resident": 2}) == "host"
    node = {"name": "a", "stats": {"engines": []}, "faults": []}
    assert show.gpu_copy_pools(node) == []
    show.faults([node])
    assert capsys.readouterr().out == ""
