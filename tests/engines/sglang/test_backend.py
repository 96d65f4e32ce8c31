"""The backend on a real data plane, beside fakes of SGLang's modules."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dataplane.client.leases import Lease
from dataplane.client.reservations import Reservation
from dataplane.engines.sglang.page_keys import PageKeys
from dataplane.protocol.control.scopes import Invalidate, Scope
from tests.dataplane.plane import Plane, engine_process, line, wait_for
from tests.dataplane.sockets.test_engine_socket import drain
from tests.engines.sglang.fakes import PAGES, MambaPoolHost, MHATokenToKVPoolHost, MLATokenToKVPoolHost, fake_sglang
from tests.engines.sglang.pages import NAMES, SOURCE, content, load, store
from tests.interleaving import MEANWHILE_S

Make = Callable[..., Any]
BLOCK_BYTES = 4096
"""Bytes of the pool that a page of the fake host pool takes."""
LAYOUTS = [
    (MHATokenToKVPoolHost, "layer_first"),
    (MHATokenToKVPoolHost, "page_first"),
    (MHATokenToKVPoolHost, "page_first_direct"),
    (MHATokenToKVPoolHost, "page_head"),
    (MLATokenToKVPoolHost, "layer_first"),
    (MLATokenToKVPoolHost, "page_first"),
]


@pytest.mark.parametrize("threads", [1, 4])
def test_pages_come_back_in_every_layout(make_backend: Make, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.engines.sglang.page_store.SHARE_BYTES", 1 << 10)
    for kind, layout in LAYOUTS:
        first = make_backend(kind(layout), tenant=f"{kind.__name__}-{layout}", copy_threads=threads, verify="always")
        assert first.batch_exists(NAMES) == 0
        expected = store(first)
        second = make_backend(kind(layout), tenant=f"{kind.__name__}-{layout}", copy_threads=threads, verify="always")
        assert second.batch_exists(NAMES) == 20
        assert second.exists(NAMES[7])
        assert load(second) == ([True] * 20, expected)


def test_reservations_are_made_in_batches(make_backend: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = MHATokenToKVPoolHost()
    monkeypatch.setattr("dataplane.engines.sglang.page_store.BATCH_BYTES", 3 * len(pool.page(0)))
    backend = make_backend(pool, checksums=False)
    expected = store(backend)
    assert load(backend) == ([True] * 20, expected)


def test_only_the_leading_pages_are_loaded(backend: Any) -> None:
    expected = store(backend, NAMES[:5])
    names = [*NAMES[:3], "f" * 64, *NAMES[3:5]]
    assert backend.batch_exists(names) == 3
    answer, found = load(backend, names)
    assert answer == [True] * 3 + [False] * 3
    assert found[:3] == expected[:3]
    assert set(b"".join(found[3:])) == {0}, "pages that were not loaded are not written"


def test_a_block_of_another_size_is_a_miss(make_backend: Make) -> None:
    backend = make_backend(copy_threads=1)
    with backend._store._client.reserve(backend._store._keys.of([NAMES[3]]), 64) as reservation:
        reservation.view(0)[:] = b"x" * 64
        assert reservation.commit().blocks == 1
    expected = store(backend, NAMES[:3])
    answer, found = load(backend, NAMES[:5])
    assert answer == [True] * 3 + [False] * 2
    assert found[:3] == expected
    assert set(b"".join(found[3:])) == {0}


OTHER = """
from tests.engines.sglang.fakes import *
from tests.engines.sglang.pages import *
from dataplane.engines.sglang.host_pages import HostPages
from dataplane.engines.sglang.page_store import PageStore
from dataplane.engines.sglang.settings import BackendSettings
settings = BackendSettings(socket=sys.argv[1], timeout_s=30.0)
pool = MHATokenToKVPoolHost()
pages = HostPages(pool)
space = pages.space(StorageConfig({}), settings, [""] * 5)
page_store = PageStore(settings, space, pages)
tell(page_store.exists(NAMES))
tell(all(page_store.load(NAMES, pool.indices(TARGET))))
tell(b"".join(content(pool, TARGET)).hex()[:4096])
page_store.close()
"""


def test_two_processes_share_pages(make_backend: Make, plane: Plane) -> None:
    expected = store(make_backend())
    with engine_process(OTHER, plane.socket) as other:
        assert line(other) == "20"
        assert line(other) == "True"
        assert line(other) == b"".join(expected).hex()[:4096]


# ---- a data plane that is gone, frozen, killed, or back


def test_a_data_plane_that_is_killed_costs_only_misses(backend: Any, plane: Plane) -> None:
    expected = store(backend, NAMES[:10])
    plane.kill()
    answer, found = load(backend, NAMES[:10])
    assert answer == [True] * 10, "memory that is mapped stays readable"
    assert found == expected
    assert backend.batch_set_v1(NAMES[10:], backend.mem_pool_host.indices(SOURCE[10:])) == [False] * 10
    plane.start()
    wait_for(lambda: backend.batch_set_v1(NAMES, backend.mem_pool_host.indices(SOURCE))[0], "it stores again")
    assert store(backend, NAMES[:10], seed=1) == expected
    assert all(load(backend, NAMES[:10])[0])


def test_a_data_plane_that_comes_later_is_used(make_backend: Make, plane: Plane) -> None:
    plane.kill()
    backend = make_backend()
    assert backend.batch_exists(NAMES) == 0
    assert load(backend)[0] == [False] * 20
    assert backend.batch_set_v1(NAMES, backend.mem_pool_host.indices(SOURCE)) == [False] * 20
    plane.start()
    client = backend._store._client
    wait_for(lambda: client.connected, "an idle backend attaches by itself")
    expected = store(backend)
    assert load(backend) == ([True] * 20, expected)


def test_a_frozen_data_plane_delays_a_store_by_one_time_out(make_backend: Make, plane: Plane) -> None:
    backend = make_backend(timeout_s=0.5)
    pool = backend.mem_pool_host
    expected: list[bytes] = []
    wait_for(lambda: backend.batch_set_v1(NAMES[:5], pool.indices(SOURCE[:5])) == [True] * 5, "it is stored")
    assert wait_for(lambda: all(load(backend, NAMES[:5])[0]), "it is mapped")
    expected = load(backend, NAMES[:5])[1]
    with plane.frozen():
        for _ in range(3):
            assert backend.batch_set_v1(NAMES, pool.indices(SOURCE)) == [False] * 20
            assert backend.batch_exists(NAMES) == 5, "look-ups need no data plane"
            assert load(backend, NAMES[:5]) == ([True] * 5, expected)
    wait_for(lambda: all(backend.batch_set_v1(NAMES, pool.indices(SOURCE))), "it stores again")


def test_a_data_plane_killed_during_a_store_publishes_nothing(
    make_backend: Make, plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make_backend(copy_threads=1)
    copy = Reservation.copy_pieces_from

    def kill_first(*arguments: Any) -> None:
        plane.kill()
        copy(*arguments)

    monkeypatch.setattr(Reservation, "copy_pieces_from", kill_first)
    assert backend.batch_set_v1(NAMES, backend.mem_pool_host.indices(SOURCE)) == [False] * 20
    monkeypatch.setattr(Reservation, "copy_pieces_from", copy)
    assert backend.batch_exists(NAMES) == 0
    plane.start()
    wait_for(lambda: backend.batch_set_v1(NAMES, backend.mem_pool_host.indices(SOURCE))[0], "it stores again")


def test_a_data_plane_killed_during_a_load_leaves_the_leased_bytes(
    make_backend: Make, plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make_backend(copy_threads=1)
    expected = store(backend)
    copy = Lease.copy_pieces_to

    def kill_first(*arguments: Any) -> int:
        plane.kill()
        return copy(*arguments)

    monkeypatch.setattr(Lease, "copy_pieces_to", kill_first)
    assert load(backend) == ([True] * 20, expected)


def test_a_full_pool_refuses_pages_one_by_one(
    make_backend: Make, make_plane: Callable[..., Plane], caplog: pytest.LogCaptureFixture
) -> None:
    small = make_plane(pool_bytes="2MiB", dataplane__segment_bytes="2MiB").start()
    pool = MHATokenToKVPoolHost(page_tokens=1024, pages=32)
    pool.fill(list(range(32)), 1)
    backend = make_backend(pool, socket=small.socket)
    names = [f"{at:064x}" for at in range(32)]
    expected = content(pool, list(range(32)))
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        saved = backend.batch_set_v1(names, pool.indices(list(range(32))))
    assert 0 < sum(saved) < 32, "the pool has room for some of the pages"
    first_lost = saved.index(False)
    assert backend.batch_exists(names) == first_lost
    (messages,) = [each.getMessage() for each in caplog.records if "not stored" in each.getMessage()]
    assert messages.startswith(f"{32 - sum(saved)} of 32 pages were not stored: ")
    pool.memory[:] = 0
    assert backend.batch_get_v1(names, pool.indices(list(range(32)))) == [at < first_lost for at in range(32)]
    assert content(pool, list(range(first_lost))) == expected[:first_lost]


def test_an_invalidation_reaches_all_pages_behind_a_prefix_however_they_were_stored(
    make_backend: Make, plane: Plane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = MHATokenToKVPoolHost()
    monkeypatch.setattr("dataplane.engines.sglang.page_store.BATCH_BYTES", 3 * len(pool.page(0)))
    backend = make_backend(pool)
    indices = pool.indices
    for before, names in (([], NAMES[:10]), (NAMES[:10], NAMES[10:])):
        assert all(backend.batch_set_v1(names, indices(SOURCE[: len(names)]), SimpleNamespace(prefix_keys=before)))
    assert "hicache_storage_pass_prefix_keys" not in caplog.text
    with plane.manager() as manager:
        assert manager.ask(Invalidate("n", Scope(keys=PageKeys("").of(NAMES[:1])))).blocks == len(NAMES)
    assert [backend.batch_exists([name]) for name in NAMES] == [0] * len(NAMES)
    for _ in range(2):
        assert all(backend.batch_set_v1(NAMES, indices(SOURCE), SimpleNamespace(prefix_keys=None)))
    assert caplog.text.count("hicache_storage_pass_prefix_keys") == 1, "an engine that names no prefix is warned"


# ---- tenants, ranks, namespaces


@pytest.mark.parametrize(
    ("loads", "hits"),
    [([NAMES], 20), ([NAMES[:8]], 8), ([NAMES[:8], NAMES[8:]], 20), ([NAMES, NAMES], 20), ([], 0)],
    ids=["loaded", "loaded in part", "loaded in two batches", "loaded twice", "dropped"],
)
def test_only_pages_that_are_loaded_count_as_hits(
    make_backend: Make, plane: Plane, monkeypatch: pytest.MonkeyPatch, loads: list[list[str]], hits: int
) -> None:
    monkeypatch.setattr("dataplane.engines.sglang.page_store.DROPPED_S", 0.0)
    backend = make_backend(tenant="acme")
    store(backend)
    assert backend.batch_exists([*NAMES, "f" * 64]) == 20
    for names in loads:
        load(backend, names)
    for name in ("d" * 64, "e" * 64):
        assert not backend.exists(name)
    totals = plane.wait_stats(lambda stats: stats.totals.requested_blocks >= 23, "look-ups are counted").totals
    assert (totals.requested_blocks, totals.hit_blocks) == (23, hits)


def test_tenants_share_nothing_and_pages_are_charged_to_them(make_backend: Make, plane: Plane) -> None:
    acme, rival = make_backend(tenant="acme"), make_backend(tenant="rival")
    store(acme)
    assert acme.batch_exists(NAMES) == 20
    assert rival.batch_exists(NAMES) == 0
    stats = plane.wait_stats(lambda stats: any(each.tenant == "acme" for each in stats.tenants), "charged")
    charged = {each.tenant: each.bytes for each in stats.tenants}
    assert charged["acme"] == 20 * BLOCK_BYTES
    assert charged.get("rival", 0) == 0


def test_ranks_have_pages_of_their_own(make_backend: Make) -> None:
    ranks = [make_backend(config={"tp_rank": rank, "tp_size": 2}) for rank in range(2)]
    contents = [store(each, seed=at) for at, each in enumerate(ranks)]
    assert contents[0] != contents[1]
    assert [load(each)[1] for each in ranks] == contents


def test_ranks_with_latent_attention_share_one_copy_that_rank_0_writes(make_backend: Make, plane: Plane) -> None:
    config = {"tp_size": 2, "is_mla_model": True}
    writer = make_backend(MLATokenToKVPoolHost(), {**config, "tp_rank": 0})
    reader = make_backend(MLATokenToKVPoolHost(), {**config, "tp_rank": 1})
    assert reader.batch_set_v1(NAMES, reader.mem_pool_host.indices(SOURCE)) == [False] * 20
    expected = store(writer)
    assert load(reader) == ([True] * 20, expected)
    assert plane.describe().pool.used_bytes == 20 * BLOCK_BYTES


def test_clearing_makes_pages_a_miss_for_this_engine_alone(make_backend: Make) -> None:
    backend, other = make_backend(), make_backend()
    store(backend)
    backend.clear()
    assert (backend.batch_exists(NAMES), other.batch_exists(NAMES)) == (0, 20)
    expected = store(backend, seed=2)
    assert load(backend) == ([True] * 20, expected)
    assert load(other)[1] != expected


def by_another_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call in a thread that then ends, as those of SGLang do at a flush of its caches."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call, *arguments).result()


def test_new_weights_make_pages_a_miss_for_this_engine_alone(
    make_backend: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = fake_sglang(monkeypatch, weight_version="1")
    backend, other = make_backend(), make_backend()
    by_another_thread(store, backend)
    assert (by_another_thread(backend.batch_exists, NAMES), other.batch_exists(NAMES)) == (20, 20)
    serving["weight_version"] = "2"
    assert backend.batch_exists(NAMES) == 0
    expected = store(backend, seed=2)
    assert load(backend) == ([True] * 20, expected)
    assert other.batch_exists(NAMES) == 0, "another engine's version 2 may be of other weights"
    attached = make_backend()
    assert attached.batch_exists(NAMES) == 0, "a backend may be attached after the update"


@pytest.mark.parametrize("before", ["batch_exists", "batch_set_v1"])
@pytest.mark.parametrize("versions", [["2"], ["2", "1"]], ids=["updated", "updated twice"])
def test_pages_of_earlier_weights_are_not_stored_under_new_ones(
    make_backend: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    before: str,
    versions: list[str],
) -> None:
    serving = fake_sglang(monkeypatch, weight_version="1")
    backend = make_backend()
    indices = backend.mem_pool_host.indices(SOURCE)
    with ThreadPoolExecutor(1) as looking, ThreadPoolExecutor(1) as storing:
        if before == "batch_exists":
            looking.submit(backend.batch_exists, NAMES).result()
        else:
            storing.submit(store, backend).result()
        for version in versions:
            serving["weight_version"] = version
            assert by_another_thread(backend.batch_exists, NAMES) == 0
        with caplog.at_level(logging.WARNING, "larder.sglang"):
            assert storing.submit(backend.batch_set_v1, NAMES, indices).result() == [False] * 20
        assert by_another_thread(backend.batch_exists, NAMES) == 0
    assert "caches were not flushed after an update of weights" in caplog.text
    expected = store(backend, seed=2)
    assert load(backend) == ([True] * 20, expected), "SGLang's caches were flushed: it has started other threads"


def test_a_look_up_beside_the_one_that_notices_new_weights_misses(
    make_backend: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = fake_sglang(monkeypatch, weight_version="1")
    backend = make_backend()
    by_another_thread(store, backend)
    serving["weight_version"] = "2"
    clear = backend._store.clear
    with ThreadPoolExecutor(1) as thread:
        beside: list[Future[int]] = []

        def clear_late() -> None:
            beside.append(thread.submit(backend.batch_exists, NAMES))
            wait(beside, MEANWHILE_S)  # it waits for this one
            clear()

        monkeypatch.setattr(backend._store, "clear", clear_late)
        assert backend.batch_exists(NAMES) == 0
        assert [each.result() for each in beside] == [0]


def test_an_engine_whose_weights_are_unknown_does_without_larder(
    make_backend: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_sglang(monkeypatch, model_path="/nowhere")
    with caplog.at_level(logging.ERROR, "larder.sglang"):
        backend = make_backend()
    assert "Larder is not used: /nowhere is neither a folder nor" in caplog.text
    assert "or name the weights with larder.model" in caplog.text
    assert backend.batch_exists(NAMES) == 0
    named = make_backend(model="m")
    store(named)
    assert named.batch_exists(NAMES) == 20


def test_clearing_shared_pages_of_ranks_ends_the_use(make_backend: Make, caplog: pytest.LogCaptureFixture) -> None:
    backend = make_backend(MLATokenToKVPoolHost(), {"tp_size": 2, "is_mla_model": True})
    store(backend)
    with caplog.at_level(logging.ERROR, "larder.sglang"):
        backend.clear()
    assert backend.batch_exists(NAMES) == 0
    assert "the ranks of this engine share their pages" in caplog.text


def test_an_engine_that_starts_while_the_node_is_drained_uses_it_afterwards(make_backend: Make, plane: Plane) -> None:
    drain(plane, on=True)
    backend = make_backend()
    assert backend.batch_exists(NAMES) == 0
    drain(plane, on=False)
    pool = backend.mem_pool_host
    wait_for(lambda: all(backend.batch_set_v1(NAMES, pool.indices(SOURCE))), "it attaches and stores")
    assert backend.batch_exists(NAMES) == len(NAMES)


# ---- pools and calls that cannot be served


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        (MambaPoolHost(), "the host pool is a MambaPoolHost; expected one of MHATokenToKVPoolHost, "),
        (MHATokenToKVPoolHost("page_first_kv_split"), "the host pool has the layout page_first_kv_split"),
    ],
)
def test_a_pool_that_cannot_be_copied_is_refused_with_a_reason(
    make_backend: Make, caplog: pytest.LogCaptureFixture, pool: Any, why: str
) -> None:
    with caplog.at_level(logging.ERROR, "larder.sglang"):
        backend = make_backend(pool)
    assert f"Larder is not used: {why}" in caplog.text
    assert backend.batch_set_v1(NAMES, pool.indices(SOURCE)) == [False] * 20


def test_a_second_pool_ends_the_use(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    store(backend)
    backend.register_mem_host_pool_v2(backend.mem_pool_host, sys.modules[type(backend).__module__].PoolName.KV)
    assert backend.batch_exists_v2(NAMES).kv_hit_pages == 20
    with caplog.at_level(logging.ERROR, "larder.sglang"):
        backend.register_mem_host_pool_v2(MambaPoolHost(), "mamba")
    assert "Larder is not used: the model has the additional host pool 'mamba'" in caplog.text
    assert backend.batch_exists(NAMES) == 0
    assert backend.batch_exists_v2(NAMES).kv_hit_pages == 0


def test_indices_that_are_not_pages_are_misses(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    store(backend)
    before = backend.mem_pool_host.memory.copy()
    tokens = np.arange(16 * 20)
    too_few, not_at_a_page, not_in_order = tokens[:-1], tokens + 8, tokens[::-1].copy()
    beyond_the_pool, negative = tokens + 16 * (PAGES - 1), tokens - 16
    with caplog.at_level(logging.ERROR, "larder.sglang"):
        for indices in (too_few, not_at_a_page, not_in_order, beyond_the_pool, negative):
            assert backend.batch_get_v1(NAMES, indices) == [False] * 20
            assert backend.batch_set_v1(NAMES, indices) == [False] * 20
    assert (backend.mem_pool_host.memory == before).all()
    messages = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert messages == [
        f"error in {name}; the engine continues without the result of this call" for name in ("_load", "_save")
    ]


def test_no_error_reaches_the_engine(make_backend: Make) -> None:
    class Failing:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"{name} fails")

    backend = make_backend()
    backend._store.close()
    backend._store = Failing()
    indices = backend.mem_pool_host.indices(SOURCE)
    transfer = type("Transfer", (), {"name": "mamba", "keys": ["a", "b"]})
    assert backend.batch_exists(NAMES) == 0
    assert backend.exists(NAMES[0]) is False
    assert backend.batch_get_v1(NAMES, indices) == [False] * 20
    assert backend.batch_set_v1(NAMES, indices) == [False] * 20
    assert backend.batch_exists_v2(NAMES, [transfer]).kv_hit_pages == 0
    assert backend.batch_get_v2([transfer]) == backend.batch_set_v2([transfer]) == {"mamba": [False] * 2}
    assert backend.get(NAMES[0]) is None
    assert backend.batch_get(NAMES) == [None] * 20
    assert backend.set(NAMES[0]) is backend.batch_set(NAMES) is False
    assert backend.clear() is backend.get_stats() is backend.close() is None
    backend.register_mem_pool_host(None)
    assert backend.batch_exists(NAMES) == 0


def test_a_closed_backend_misses(backend: Any) -> None:
    store(backend)
    backend.close()
    backend.close()
    assert backend.batch_exists(NAMES) == 0
    assert load(backend)[0] == [False] * 20


def test_transfers_are_reported_once(make_backend: Make) -> None:
    backend = make_backend(config={"enable_storage_metrics": True})
    store(backend)
    load(backend, NAMES[:4])
    stats = backend.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([20], [4])
    assert min(*stats.backup_bandwidth, *stats.prefetch_bandwidth) > 0
    assert backend.get_stats().backup_pgs == []
