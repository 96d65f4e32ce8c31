"""LMCache's HTTP interface: its statuses and JSON, over Larder's records, roles and audit."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from dataplane.protocol.stats.tenants import TenantStats
from tests.app.callers import create_token, guarding, send
from tests.app.fake_node import FakeNode
from tests.app.plane import IMPATIENT, Plane, serving, settings_in
from tests.app.problems import accepted

pytestmark = pytest.mark.anyio
GIB = 1 << 30


async def record(plane: Plane, tenant: str) -> Any:
    return await plane.get(f"/api/v1/quotas/{tenant}")


class TestQuotas:
    async def test_a_quota_is_a_limit_and_is_reported_in_lmcaches_form(self, plane: Plane) -> None:
        done = await plane.http.put("/quota/acme", json={"limit_gb": 1.5})
        assert (done.status_code, done.json()) == (200, {"cache_salt": "acme", "limit_gb": 1.5, "status": "ok"})
        assert (await record(plane, "acme"))["limit_bytes"] == 1.5 * GIB
        assert await plane.get("/quota/acme") == {
            "cache_salt": "acme",
            "limit_gb": 1.5,
            "current_usage_gb": 0.0,
            "exists": True,
        }
        assert await plane.get("/quota") == {"users": {"acme": {"limit_gb": 1.5, "current_usage_gb": 0.0}}}

    async def test_an_unset_quota_is_answered_with_200_and_deleted_only_once(self, plane: Plane) -> None:
        none = {"cache_salt": "acme", "limit_gb": 0.0, "current_usage_gb": 0.0, "exists": False}
        assert await plane.get("/quota/acme") == none
        await plane.http.put("/quota/acme", json={"limit_gb": 1})
        for status in ("removed", "not_found"):
            assert accepted(await plane.http.delete("/quota/acme"), 200) == {"cache_salt": "acme", "status": status}
        assert await plane.get("/quota/acme") == none
        assert (await plane.http.get("/api/v1/quotas/acme")).status_code == 404

    async def test_the_blocks_of_a_tenant_are_its_usage(self, plane: Plane, node: FakeNode) -> None:
        node.stats.tenants = [TenantStats("acme", bytes=GIB // 2)]
        await plane.until(lambda: any(stats.tenants for stats in plane.app.parts.fleet.stats()))
        assert (await plane.get("/quota/acme"))["current_usage_gb"] == 0.5

    @pytest.mark.parametrize("salt", ["_default", "a b", "50%", "a?b#c&d=e", "ключ", "a.b:c;d,e'f\"g", "..."])
    async def test_every_salt_that_can_be_has_a_path(self, shared_plane: Plane, salt: str) -> None:
        path = f"/quota/{quote(salt, safe='')}"
        assert (await shared_plane.http.put(path, json={"limit_gb": 2})).json()["cache_salt"] == salt
        assert (await shared_plane.get(path))["exists"] is True
        assert list((await shared_plane.get("/quota"))["users"]) == [salt]
        assert (await shared_plane.http.delete(path)).json() == {"cache_salt": salt, "status": "removed"}

    @pytest.mark.parametrize("path", ["/quota/a@b", "/quota/a%5Cb", "/quota/" + "x" * 129, "/quota/a%0Ab"])
    async def test_an_invalid_salt_is_refused(self, plane: Plane, path: str) -> None:
        answers = [
            await plane.http.put(path, json={"limit_gb": 1}),
            await plane.http.get(path),
            await plane.http.delete(path),
        ]
        for answer in answers:
            assert answer.status_code == 400
            assert answer.json()["error"].startswith("tenant: expected")

    @pytest.mark.parametrize(
        ("body", "error"),
        [
            (b"{", "invalid JSON body"),
            (b"", "invalid JSON body"),
            (b"\xff", "invalid JSON body"),
            (b"[" * 100_000, "invalid JSON body"),
            (b"[]", "body must be {'limit_gb': <float>}"),
            (b'{"bad_key": 1}', "body must be {'limit_gb': <float>}"),
            (b'{"limit_gb": "much"}', "limit_gb must be numeric"),
            (b'{"limit_gb": null}', "limit_gb must be numeric"),
            (b'{"limit_gb": true}', "limit_gb must be numeric"),
            (b'{"limit_gb": [1]}', "limit_gb must be numeric"),
            (b'{"limit_gb": "inf"}', "limit_gb must be finite"),
            (b'{"limit_gb": "nan"}', "limit_gb must be finite"),
            (b'{"limit_gb": -1.0}', "limit_gb must be non-negative"),
            (b'{"limit_gb": 1e30}', "limit_gb must be at most 1073741824"),
            (b'{"limit_gb": ' + b"9" * 400 + b"}", "limit_gb must be"),
        ],
    )
    async def test_an_invalid_body_is_refused_and_changes_nothing(
        self, shared_plane: Plane, body: bytes, error: str
    ) -> None:
        answer = await shared_plane.http.put("/quota/acme", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(error)
        assert (await shared_plane.get("/quota/acme"))["exists"] is False

    async def test_the_rest_of_a_record_is_not_lmcaches(self, plane: Plane) -> None:
        given = {"floor_bytes": GIB, "weight": 2.0, "note": "kept"}
        await plane.http.put("/api/v1/quotas/acme", json=given)
        assert (await plane.get("/quota/acme"))["exists"] is False
        assert await plane.get("/quota") == {"users": {}}
        assert (await plane.http.delete("/quota/acme")).json()["status"] == "not_found"
        await plane.http.put("/quota/acme", json={"limit_gb": 2})
        now = await record(plane, "acme")
        assert {**given, "limit_bytes": 2 * GIB} == {name: now[name] for name in (*given, "limit_bytes")}
        assert (await plane.http.delete("/quota/acme")).json()["status"] == "removed"
        now = await record(plane, "acme")
        assert {**given, "limit_bytes": None} == {name: now[name] for name in (*given, "limit_bytes")}

    async def test_a_limit_below_the_floor_is_refused(self, plane: Plane) -> None:
        await plane.http.put("/api/v1/quotas/acme", json={"floor_bytes": 10_000})
        answer = await plane.http.put("/quota/acme", json={"limit_gb": 0})
        assert answer.status_code == 400
        assert "floor_bytes" in answer.json()["error"]

    async def test_writers_at_once_all_get_through(self, plane: Plane) -> None:
        answers = await asyncio.gather(
            *(plane.http.put("/quota/acme", json={"limit_gb": number}) for number in range(8)),
            *(plane.http.delete("/quota/acme") for _ in range(4)),
        )
        assert {answer.status_code for answer in answers} == {200}

    async def test_the_audit_names_the_actor_of_each_change(self, plane: Plane) -> None:
        await plane.http.put("/quota/acme", json={"limit_gb": 1})
        entry = (await plane.get("/api/v1/audit"))["items"][0]
        audited = {name: entry[name] for name in ("action", "kind", "name", "actor")}
        assert audited == {"action": "create", "kind": "quota", "name": "acme", "actor": "local"}

    async def test_more_than_a_page_is_listed(self, new_plane: Plane) -> None:
        quotas = {f"t{number:04}": {"limit_bytes": 1} for number in range(1001)}
        document = {"apiVersion": "larder/v1", "quotas": quotas}
        accepted(await new_plane.http.post("/api/v1/apply", json={"document": document}))
        assert len((await new_plane.get("/quota"))["users"]) == 1001


class TestWhoMay:
    async def test_roles_and_tenants_are_those_of_the_api(self, socket_dir: Path) -> None:
        async with guarding(socket_dir) as plane:
            viewer = await create_token(plane, "viewer-token")
            limited = await create_token(plane, "limited", "operator", tenants=["mine"])

            async def status(token: str, method: str, path: str, **more: Any) -> int:
                return (await send(plane, token, method, path, **more)).status_code

            body = {"json": {"limit_gb": 1}}
            assert await status("", "PUT", "/quota/mine", **body) == 401
            assert await status(viewer, "PUT", "/quota/mine", **body) == 403
            assert await status(limited, "PUT", "/quota/mine", **body) == 403  # there is no ceiling for it
            accepted(await plane.http.put("/api/v1/ceilings/mine", json={"max_limit_bytes": 2 * GIB}))
            assert await status(limited, "PUT", "/quota/mine", **body) == 200
            assert await status(limited, "PUT", "/quota/mine", json={"limit_gb": 3}) == 403
            assert await status(limited, "PUT", "/quota/theirs", **body) == 403
            assert await status(limited, "GET", "/quota/theirs") == 403
            assert await status(viewer, "POST", "/cache/clear") == 403
            assert await status(limited, "POST", "/cache/clear") == 403
            assert await status("", "GET", "/status") == 401
            assert await status("", "GET", "/healthcheck") == 503
            await plane.http.put("/quota/theirs", json={"limit_gb": 1})
            listed = await send(plane, limited, "GET", "/quota")
            assert list(listed.json()["users"]) == ["mine"]

    async def test_a_refused_caller_gets_the_reason_where_lmcaches_command_line_looks(self, socket_dir: Path) -> None:
        async with guarding(socket_dir) as plane:
            answer = await send(plane, "", "PUT", "/quota/mine", json={"limit_gb": 1})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert "larder tokens create" in answer.json()["error"]


class TestTheRest:
    async def test_versions_are_text_in_json(self, shared_plane: Plane) -> None:
        assert await shared_plane.get("/lmc_version") == "0.5.6"
        assert (await shared_plane.get("/version")).startswith("0.5.6-larder")
        assert (await shared_plane.get("/commit_id")).startswith("larder")

    async def test_it_is_unhealthy_without_a_gateway(self, shared_plane: Plane) -> None:
        answer = await shared_plane.http.get("/healthcheck")
        assert (answer.status_code, answer.json()["status"]) == (503, "unhealthy")
        assert "gateway" in answer.json()["reason"]

    @IMPATIENT
    async def test_a_silent_node_is_shown_in_lmcaches_thread_status(self, new_plane: Plane, new_node: FakeNode) -> None:
        assert (await new_plane.get("/periodic-threads-health"))["healthy"] is True
        await new_node.stop()
        await new_plane.until(lambda: any(each.lost for each in new_plane.app.parts.fleet.nodes.values()))
        health = await new_plane.get("/periodic-threads-health")
        assert (health["healthy"], health["unhealthy_count"]) == (False, 1)
        assert health["unhealthy_threads"][0]["name"] == "node-a"
        assert (await new_plane.get("/status"))["is_healthy"] is False

    async def test_config_has_lmcaches_sections(self, shared_plane: Plane) -> None:
        assert {"mp", "storage_manager", "observability", "http"} <= (await shared_plane.get("/config")).keys()
        assert await shared_plane.get("/config/adapters") == {"adapters": []}

    @pytest.mark.parametrize(
        ("method", "path", "body", "status", "detail"),
        [
            ("GET", "/cache/objects", None, 503, "no L2 adapters configured"),
            ("GET", "/cache/objects?tier=all", None, 400, "tier 'all' not supported"),
            ("GET", "/cache/objects?tier=l3", None, 422, "tier"),
            ("GET", "/cache/objects?tier=l1&page_size=0", None, 422, "page_size"),
            ("GET", "/cache/objects?tier=l1&page_size=5001", None, 422, "page_size"),
            ("GET", "/cache/objects?tier=l1&page_token=nonsense", None, 400, "page_token"),
            ("DELETE", "/cache/objects", b"", 400, "invalid JSON body"),
            ("DELETE", "/cache/objects", b"{}", 422, "keys"),
            ("DELETE", "/cache/objects", b'{"keys": 3}', 422, "keys"),
            ("DELETE", "/cache/objects", b'{"keys": []}', 503, "no L2 adapters configured"),
            ("POST", "/cache/clear", b'{"tier": "l2"}', 400, "tier 'l2' not supported; only 'l1'"),
            ("POST", "/cache/clear", b'{"tier": 1}', 422, "tier"),
            ("GET", "/cache/prefetches/unheard-of", None, 404, "unknown prefetch request_id='unheard-of'"),
            ("POST", "/cache/prefetches", b"{}", 422, "model_name"),
        ],
    )
    async def test_invalid_requests_are_refused_with_lmcaches_statuses(
        self, shared_plane: Plane, method: str, path: str, body: bytes | None, status: int, detail: str
    ) -> None:
        answer = await shared_plane.http.request(method, path, content=body)
        assert answer.status_code == status
        assert answer.json()["detail"].startswith(detail)

    @pytest.mark.parametrize(
        ("key", "fault"),
        [
            ({"chunk_hash_hex": "zz"}, "chunk_hash_hex: expected hex digits"),
            ({"chunk_hash_hex": "abc"}, "chunk_hash_hex: expected hex digits"),
            ({"model_name": "a@b"}, "model_name: must not contain '@'"),
            ({"cache_salt": "a/b"}, "cache_salt: expected"),
            ({"object_group_id": -1}, "object_group_id: must be >= 0"),
        ],
    )
    async def test_an_invalid_key_is_named(self, plane: Plane, key: dict[str, Any], fault: str) -> None:
        good = {"chunk_hash_hex": "00" * 32, "model_name": "m", "kv_rank": 1}
        body = {"keys": [good, {**good, **key}], "tier": "l1"}
        answer = await plane.http.request("DELETE", "/cache/objects", json=body)
        assert answer.status_code == 400
        assert answer.json()["detail"].startswith(f"keys[1]: {fault}")

    async def test_a_body_of_another_kind_is_refused(self, plane: Plane) -> None:
        for kind in ("text/plain", "x"):
            answer = await plane.http.put("/quota/acme", content=b'{"limit_gb": 1}', headers={"content-type": kind})
            assert answer.status_code == 415

    async def test_no_route_of_it_exists_when_it_is_off(self, socket_dir: Path) -> None:
        async with serving(settings_in(socket_dir, lmcache_api=False)) as plane:
            for method, path in (("GET", "/quota"), ("GET", "/status"), ("GET", "/healthcheck")):
                assert (await plane.http.request(method, path)).status_code == 404
            answer: httpx.Response = await plane.http.put("/quota/acme", json={"limit_gb": 1})
            assert answer.status_code in (404, 405)

    async def test_no_environment_and_no_scripts(self, plane: Plane) -> None:
        for path in ("/env", "/threads", "/loglevel"):
            assert (await plane.http.get(path)).status_code == 404
        assert (await plane.http.post("/run_script", content=b"1")).status_code in (404, 405)
