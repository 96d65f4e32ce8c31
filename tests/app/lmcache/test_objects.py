"""LMCache's HTTP interface over a real data plane that serves its clients: objects, prefetches, status, metrics."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.services.lmcache import quotas
from dataplane.client import Space, attach
from dataplane.protocol.keys import chain
from dataplane.protocol.salts import shown
from tests.app.callers import bearer, create_token, send
from tests.app.plane import Plane
from tests.app.real_node import governing
from tests.app.waiting import until
from tests.dataplane.plane import Plane as DataPlane
from tests.lmcache.client import CHUNK_BYTES, NOTHING, Client, prompt
from tests.lmcache.engine_memory import EngineMemory
from tests.lmcache.planes import FOLDER, gateway_plane, url_of
from tests.run_marks import short_folder

pytestmark = pytest.mark.anyio
RANK = 1 << 24 | 1 << 8
"""The only rank of a world of one."""


@dataclass
class Serving:
    """A management plane, its node, and a worker of the node's gateway."""

    plane: Plane
    node: DataPlane
    worker: Client

    async def ask(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        answer = await self.plane.http.request(method, path, **more)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def objects(self, **params: Any) -> list[dict[str, Any]]:
        """All pages."""
        found: list[dict[str, Any]] = []
        token: str | None = None
        while True:
            more = {} if token is None else {"page_token": token}
            page = await self.ask("GET", "/cache/objects", params={"tier": "l1", **params, **more})
            found += page["entries"]
            token = page["next_page_token"]
            if token is None:
                return found

    def names(self, tokens: list[int], salt: str = "") -> list[dict[str, Any]]:
        """The objects of a prompt, as this interface names them."""
        return [
            {
                "chunk_hash_hex": key.hex(),
                "model_name": "llama",
                "kv_rank": RANK,
                "object_group_id": 0,
                "cache_salt": salt,
            }
            for key in chain(tokens, salt)
        ]


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Serving]:
    (folder / "app").mkdir()
    with gateway_plane(folder) as node, Client(url_of(node)) as worker:
        worker.register()
        async with governing(node, folder / "app") as plane:
            await plane.until(lambda: any(stats.gateway for stats in plane.app.parts.fleet.stats()))
            yield Serving(plane, node, worker)


@pytest.fixture
async def serving(socket_dir: Path) -> AsyncIterator[Serving]:
    async with served(socket_dir) as running:
        yield running


@pytest.fixture(scope="module")
async def shared_serving() -> AsyncIterator[Serving]:
    """One for all tests of the module that leave it as they find it."""
    with short_folder() as folder:
        async with served(folder) as running:
            yield running


async def test_objects_of_clients_are_listed_page_by_page(serving: Serving) -> None:
    serving.worker.store(prompt(5))
    serving.worker.store(prompt(2, 9), cache_salt="acme")
    expected = [*serving.names(prompt(5)), *serving.names(prompt(2, 9), "acme")]
    first = await serving.ask("GET", "/cache/objects?tier=l1&page_size=2")
    assert (first["adapter"], first["shared"], len(first["entries"])) == ("dram", False, 2)
    for size in (1, 2, 500, 5000):
        found = await serving.objects(page_size=size)
        assert sorted(each["key"]["chunk_hash_hex"] for each in found) == sorted(
            each["chunk_hash_hex"] for each in expected
        )
        assert all(each["key"] in expected and each["size_bytes"] == CHUNK_BYTES for each in found)
    assert await serving.objects(model_name="another") == []


async def test_blocks_of_larders_own_engines_are_no_objects(serving: Serving) -> None:
    engine = attach(serving.node.socket, [Space(model="llama", block_bytes=4096)], timeout_s=60)
    try:
        keys = chain(prompt(2, 3), "")
        with engine.reserve(keys, 4096) as reservation:
            assert reservation.commit().blocks == 2
        assert await serving.objects() == []
        await serving.ask("POST", "/cache/clear", json={"force": True})
        assert engine.lookup(keys) == 2
    finally:
        engine.close()


async def test_deleted_objects_are_misses_and_are_counted_once(serving: Serving) -> None:
    serving.worker.store(prompt(3))
    serving.worker.store(prompt(3), cache_salt="acme")
    last = serving.names(prompt(3))[2]
    absent = {**last, "chunk_hash_hex": "00" * 32}
    wrong_rank = {**last, "kv_rank": RANK + 1}
    body = {"keys": [last, last, absent, wrong_rank], "tier": "l1"}
    assert await serving.ask("DELETE", "/cache/objects", json=body) == {"deleted": 1, "skipped": 0, "ok": True}
    assert serving.worker.lookup(prompt(3), "again") == 2
    assert serving.worker.lookup(prompt(3), "theirs", cache_salt="acme") == 3
    entry = (await serving.plane.get("/api/v1/audit"))["items"][0]
    assert (entry["action"], entry["kind"]) == ("invalidate", "blocks")


async def test_leased_objects_are_deleted_by_force_alone(serving: Serving) -> None:
    serving.worker.store(prompt(2))
    assert serving.worker.lookup(prompt(2), "reader") == 2
    body = {"keys": serving.names(prompt(2)), "tier": "all"}
    assert await serving.ask("DELETE", "/cache/objects", json=body) == {"deleted": 0, "skipped": 2, "ok": True}
    assert serving.worker.lookup(prompt(2), "another") == 2
    forced = {**body, "force": True}
    assert await serving.ask("DELETE", "/cache/objects", json=forced) == {"deleted": 2, "skipped": 0, "ok": True}
    assert serving.worker.lookup(prompt(2), "third") == 0


async def test_clear_leaves_leased_blocks_unless_forced(serving: Serving) -> None:
    serving.worker.store(prompt(2))
    serving.worker.store(prompt(2, 5))
    assert serving.worker.lookup(prompt(2), "reader") == 2
    cleared = {"status": "ok", "cleared": {"tier": "l1"}}
    assert await serving.ask("POST", "/cache/clear") == cleared
    assert serving.worker.lookup(prompt(2, 5), "gone") == 0
    assert serving.worker.lookup(prompt(2), "kept") == 2
    assert await serving.ask("POST", "/cache/clear", json={"tier": "l1", "force": True}) == cleared
    assert serving.worker.lookup(prompt(2), "gone too") == 0
    entries = (await serving.plane.get("/api/v1/audit"))["items"][:2]
    assert [(entry["action"], entry["after"]["force"]) for entry in entries] == [("clear", True), ("clear", False)]


async def test_a_prefetch_reports_its_result_once(serving: Serving) -> None:
    serving.worker.store(prompt(3))
    request = {"model_name": "llama", "world_size": 1, "token_ids": prompt(3) + prompt(2, 4)}
    begun = await serving.ask("POST", "/cache/prefetches", 202, json=request)
    assert (begun["status"], begun["chunks"]) == ("submitted", 5)
    path = f"/cache/prefetches/{begun['request_id']}"
    done = await serving.ask("GET", path)
    assert (done["status"], done["found_keys"], done["total_keys"]) == ("completed", 3, 5)
    await serving.ask("GET", path, 404)
    short = {**request, "token_ids": [1, 2, 3]}
    assert await serving.ask("POST", "/cache/prefetches", 202, json=short) == {"chunks": 0, "status": "noop"}


@pytest.mark.parametrize(
    ("change", "status", "detail"),
    [
        ({"model_name": "another"}, 503, "no layout registered for model_name='another' world_size=1"),
        ({"world_size": 2}, 503, "no layout registered"),
        ({"token_ids": [-1] * 300}, 400, "token_ids"),
        ({"token_ids": [1 << 32] * 300}, 400, "token_ids"),
        ({"token_ids": [0] * 262_145}, 400, "token_ids: expected at most 262144"),
        ({"cache_salt": "a/b"}, 400, "cache_salt"),
        ({"source_tier": "l1"}, 400, "unsupported prefetch direction 'l1'->'l1'"),
    ],
)
async def test_an_invalid_prefetch_is_refused(
    shared_serving: Serving, change: dict[str, Any], status: int, detail: str
) -> None:
    request = {"model_name": "llama", "world_size": 1, "token_ids": [1] * 300}
    answer = await shared_serving.ask("POST", "/cache/prefetches", status, json={**request, **change})
    assert answer["detail"].startswith(detail)


async def test_status_describes_a_cached_model_after_its_worker_has_gone(serving: Serving) -> None:
    """`lmcache bench engine --lmcache-url` sizes its load by the bytes per token of the model that it is told."""
    serving.worker.store(prompt(1))
    registered = (await serving.ask("GET", "/status"))["cache_context_meta"]["7"]
    assert serving.worker.ask("unregister_kv_cache_engine_driven_context", 7) is NOTHING
    fleet = serving.plane.app.parts.fleet
    await serving.plane.until(lambda: all(s.gateway and not s.gateway.instances for s in fleet.stats()))
    (cached,) = (await serving.ask("GET", "/status"))["cache_context_meta"].values()
    assert cached == {**registered, "kv_cache_layout": {**registered["kv_cache_layout"], "layout": ""}}
    assert cached["kv_cache_layout"]["cache_size_per_token"] == CHUNK_BYTES // 256


async def test_status_has_the_fields_that_lmcaches_describe_reads(serving: Serving) -> None:
    serving.worker.store(prompt(4))
    serving.worker.lookup(prompt(4), "open")
    fleet = serving.plane.app.parts.fleet
    await serving.plane.until(lambda: any(s.gateway and s.gateway.lookups for s in fleet.stats()))
    status = await serving.ask("GET", "/status")
    assert (status["is_healthy"], status["chunk_size"], status["active_sessions"]) == (True, 256, 1)
    manager = status["storage_manager"]["l1_manager"]
    assert manager["total_object_count"] == 4
    assert manager["memory_used_bytes"] >= 4 * CHUNK_BYTES
    assert manager["memory_usage_ratio"] == manager["memory_used_bytes"] / manager["memory_total_bytes"]
    assert status["storage_manager"]["l1_eviction_controller"]["eviction_policy"] == "lru"
    assert status["cache_context_meta"]["7"]["model_name"] == "llama"
    assert status["registered_non_cuda_instance_ids"] == [7]
    assert await serving.ask("GET", "/healthcheck") == {"status": "healthy"}
    config = await serving.ask("GET", "/config")
    assert f"tcp://{config['mp']['host']}:{config['mp']['port']}" == url_of(serving.node)
    assert (
        config["storage_manager"]["l1_manager_config"]["memory_config"]["size_in_bytes"]
        == (manager["memory_total_bytes"])
    )


async def test_usage_of_a_salt_is_the_stored_bytes_of_its_clients(serving: Serving) -> None:
    serving.worker.store(prompt(4), cache_salt="acme")
    await serving.ask("PUT", "/quota/acme", json={"limit_gb": 1})
    fleet = serving.plane.app.parts.fleet
    await serving.plane.until(lambda: any(t.bytes >= 4 * CHUNK_BYTES for s in fleet.stats() for t in s.tenants))
    usage = (await serving.ask("GET", "/quota/acme"))["current_usage_gb"]
    assert usage * (1 << 30) >= 4 * CHUNK_BYTES
    assert (await serving.ask("GET", "/quota"))["users"]["acme"]["current_usage_gb"] == usage


async def test_a_quota_set_over_this_interface_binds_clients_at_once(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "APPLIED_S", 30.0)
    limit = 2 * CHUNK_BYTES
    await serving.ask("PUT", f"/quota/{shown('acme')}", json={"limit_gb": limit / (1 << 30)})
    serving.worker.store(prompt(1), cache_salt="acme", request="one")
    serving.worker.store(prompt(1, 2), cache_salt="acme", request="two")
    serving.worker.store(prompt(1, 3), cache_salt="acme", request="three")
    remaining = [entry for entry in await serving.objects() if entry["key"]["cache_salt"] == "acme"]
    assert len(remaining) == 2


async def test_metrics_have_lmcaches_names(serving: Serving) -> None:
    serving.worker.store(prompt(4))
    serving.worker.lookup(prompt(6), "reader")
    assert serving.worker.prepare_retrieve(prompt(4), "reader")["success"]
    assert serving.worker.commit_retrieve(prompt(4), "reader") is True
    fleet = serving.plane.app.parts.fleet
    await serving.plane.until(lambda: any(s.gateway and s.gateway.hit_chunks for s in fleet.stats()))
    text = (await serving.plane.http.get("/metrics")).text
    name = fleet.stats()[0].node
    assert f'lmcache_mp_l1_write_chunks_total{{l1_tag="_default",node="{name}"}} 4.0' in text
    assert f'lmcache_mp_lookup_hit_tokens_total{{node="{name}"}} 1024.0' in text
    assert f'lmcache_mp_num_finished_stores_total{{device="cpu",node="{name}"}} 1.0' in text


async def test_checksums_are_of_the_engines_own_memory(serving: Serving) -> None:
    with EngineMemory() as memory:
        memory.fill(1)
        serving.worker.ask("register_kv_cache", *memory.registration(8))
        body = {"block_ids": [3, 4, 5, 9], "chunk_size": 2, "instance_id": 8}
        first = await serving.ask("POST", "/cache/checksums", json=body)
        digests = first.pop("chunk_checksums")
        assert first == {
            "status": "success",
            "chunk_size": 2,
            "num_chunks": 2,
            "layerwise": False,
            "block_id_ranges": [[3, 5], 9],
        }
        assert len(set(digests)) == 2
        memory.fill(2)
        second = await serving.ask("POST", "/cache/checksums", json=body)
        assert set(second["chunk_checksums"]).isdisjoint(digests)
        layers = await serving.ask("POST", "/cache/checksums", json={**body, "layerwise": True})
        assert {name: len(each) for name, each in layers["chunk_checksums"].items()} == {"layer_0": 2, "layer_1": 2}


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({"instance_id": 99, "block_ids": [1], "chunk_size": 1}, 404, "instance_id 99 not registered"),
        ({"instance_id": 7, "block_ids": [1], "chunk_size": 1}, 501, "checksum not supported"),
        ({"instance_id": "x"}, 422, "instance_id"),
    ],
)
async def test_invalid_checksums_are_refused(
    shared_serving: Serving, body: dict[str, Any], status: int, detail: str
) -> None:
    answer = await shared_serving.ask("POST", "/cache/checksums", status, json=body)
    assert answer["detail"].startswith(detail)


async def test_callers_of_a_tenant_page_over_its_objects_alone_and_learn_of_no_models(serving: Serving) -> None:
    serving.worker.store(prompt(5))
    serving.worker.store(prompt(2, 9), cache_salt="acme")
    serving.worker.store(prompt(1, 8), cache_salt="other")
    admin = await create_token(serving.plane, "root", "admin")
    serving.plane.http.headers.update(bearer(admin))
    one = await create_token(serving.plane, "one", "operator", tenants=["acme"])
    two = await create_token(serving.plane, "two", "operator", tenants=["acme", "other"])
    path = "/cache/objects?tier=l1"
    page = (await send(serving.plane, one, "GET", f"{path}&page_size=2")).json()
    assert len(page["entries"]) == 2, "what others have takes no place on the page"
    for token, expected in ((one, 2), (two, 3)):
        serving.plane.http.headers.update(bearer(token))
        for size in (1, 2, 500):
            found = await serving.objects(page_size=size)
            assert {each["key"]["cache_salt"] for each in found} <= {"acme", "other"}
            assert len(found) == expected
    for wrong in ("x", "2.", "9.x", "0.x"):
        await serving.ask("GET", f"{path}&page_token={wrong}", 400)
    body = {"world_size": 1, "token_ids": prompt(3), "cache_salt": "acme"}
    for model in ("llama", "of-nobody"):
        answer = await serving.ask("POST", "/cache/prefetches", 202, json={**body, "model_name": model})
        answer = await serving.ask("GET", f"/cache/prefetches/{answer['request_id']}")
        assert (answer["found_keys"], answer["total_keys"]) == (0, 3)


async def test_a_node_shows_its_gateway_and_counts_no_engine_that_is_the_gateways_own(serving: Serving) -> None:
    serving.worker.store(prompt(5))
    name = (await serving.plane.node())["name"]

    async def with_worker() -> Any:
        stats = (await serving.plane.get(f"/api/v1/nodes/{name}"))["stats"]
        return stats["gateway"]["workers"] and stats

    stats = await until(with_worker)
    gateway = stats["gateway"]
    assert (gateway["gateway"], gateway["url"]) == ("lmcache", url_of(serving.node))
    assert (gateway["connections"], [worker["model"] for worker in gateway["workers"]]) == (1, ["llama"])
    assert sum(gateway["requests"].values()) >= 1
    assert all(engine["group"] != "lmcache:schedulers" for engine in stats["engines"])
    assert [engine["client"] for engine in stats["engines"]] == [gateway["workers"][0]["client"]]
    metrics = (await serving.plane.http.get("/metrics")).text
    assert f'larder_engines{{node="{name}"}} 1' in metrics
    admin = await create_token(serving.plane, "root", "admin")
    serving.plane.http.headers.update(bearer(admin))
    limited = await create_token(serving.plane, "one", tenants=["acme"])
    answer = await send(serving.plane, limited, "GET", f"/api/v1/nodes/{name}")
    assert answer.json()["stats"] is None


async def test_health_shows_when_new_workers_cannot_map_the_memory_and_when_they_can_again(serving: Serving) -> None:
    """Another program's file has the name: every health check reports it until the file is gone."""
    path = FOLDER / serving.worker.register()["shm_name"]
    node = (await serving.plane.node())["name"]

    async def becomes(status: int) -> None:
        async def ready() -> bool:
            return (await serving.plane.http.get("/healthz/fleet")).status_code == status

        await until(ready)

    await becomes(200)
    path.unlink()
    path.write_bytes(b"a stranger's")
    try:
        await becomes(503)
        detail = (await serving.ask("GET", "/healthz/fleet", 503))["detail"]
        assert f"{node}: its gateway cannot serve new workers: {path} is another file now" in detail
        assert not (await serving.plane.get("/api/v1/overview"))["ready"]
        shown = (await serving.plane.get(f"/api/v1/nodes/{node}"))["stats"]["gateway"]
        assert "is another file now" in shown["problem"]
        assert "is another file now" in (await serving.ask("GET", "/healthcheck", 503))["reason"]
        metrics = (await serving.plane.http.get("/metrics")).text
        assert f'larder_gateway_problem{{gateway="lmcache",node="{node}"}} 1' in metrics
        assert path.read_bytes() == b"a stranger's"
    finally:
        path.unlink()
    await becomes(200)
    metrics = (await serving.plane.http.get("/metrics")).text
    assert f'larder_gateway_problem{{gateway="lmcache",node="{node}"}} 0' in metrics
    assert f'larder_gateway_name_restored_total{{gateway="lmcache",node="{node}"}} 1' in metrics
