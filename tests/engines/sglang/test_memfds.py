"""Pages that the data plane copies out of the memfds of SGLang's host pool."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from typing import Any

import pytest

from dataplane.client.reservations import Reservation
from dataplane.engines.sglang.host_pages import HostPages, PoolRefused
from dataplane.protocol.engine import HostPiece
from tests.dataplane.plane import Plane, wait_for
from tests.engines.sglang.fakes import PAGES, MHATokenToKVPoolHost, MLATokenToKVPoolHost
from tests.engines.sglang.pages import NAMES, SOURCE, TARGET, content, store

KINDS = [
    (kind, layout) for kind in (MHATokenToKVPoolHost, MLATokenToKVPoolHost) for layout in ("layer_first", "page_first")
]


@pytest.fixture
def make_copied(make_backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`make_copied(pool)`: a backend whose pages are stored by the data plane. The engine may not copy them."""

    def fail(*_: object) -> None:
        raise AssertionError("the engine copies")

    monkeypatch.setattr(Reservation, "copy_pieces_from", fail)

    def new(pool: Any = None, **options: Any) -> Any:
        return make_backend(pool or MHATokenToKVPoolHost(shm=True), store_copies="data_plane", **options)

    return new


def load(backend: Any) -> list[bytes]:
    """Load pages into others; return the bytes."""
    pool = backend.mem_pool_host
    assert backend.batch_get_v1(NAMES, pool.indices(TARGET)) == [True] * 20
    return content(pool, TARGET)


@pytest.mark.parametrize(("kind", "layout"), KINDS)
def test_pages_that_the_data_plane_has_copied_are_read_by_other_engines(
    make_copied: Callable[..., Any], make_backend: Callable[..., Any], kind: Any, layout: str
) -> None:
    expected = store(make_copied(kind(layout, shm=True)))
    other = make_backend(kind(layout), verify="always")
    assert other.batch_exists(NAMES) == 20
    assert load(other) == expected


def test_requests_are_made_in_batches(
    make_copied: Callable[..., Any], make_backend: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = MHATokenToKVPoolHost(shm=True)
    monkeypatch.setattr("dataplane.engines.sglang.page_store.BATCH_BYTES", 3 * len(pool.page(0)))
    backend = make_copied(pool, checksums=False)
    expected = store(backend)
    assert load(backend) == expected


def test_a_frozen_data_plane_costs_one_time_out_and_publishes_nothing_later(
    make_copied: Callable[..., Any], plane: Plane
) -> None:
    backend = make_copied(timeout_s=0.5)
    pool = backend.mem_pool_host
    pool.fill(SOURCE, 1)
    wait_for(lambda: backend._store._client.connected, "it is attached")
    with plane.frozen():
        for _ in range(3):
            assert backend.batch_set_v1(NAMES, pool.indices(SOURCE)) == [False] * 20
            assert backend.batch_exists(NAMES) == 0
        pool.fill(SOURCE, 2)  # SGLang has given the pages to other tokens
    plane.wait_stats(
        lambda stats: not stats.pool.used_bytes and any(each.connected for each in stats.engines), "settled"
    )
    assert backend.batch_exists(NAMES) == 0
    wait_for(lambda: all(backend.batch_set_v1(NAMES, pool.indices(SOURCE))), "it stores again")
    assert load(backend) == content(pool, SOURCE)


def test_a_data_plane_that_is_killed_and_back_gets_the_memfds_again(
    make_copied: Callable[..., Any], plane: Plane
) -> None:
    backend = make_copied()
    expected = store(backend)
    assert load(backend) == expected
    plane.kill()
    assert load(backend) == expected, "memory that a load has mapped stays readable"
    pool = backend.mem_pool_host
    assert backend.batch_set_v1(NAMES, pool.indices(SOURCE)) == [False] * 20
    plane.start()
    wait_for(lambda: all(backend.batch_set_v1(NAMES, pool.indices(SOURCE))), "it stores again")
    assert load(backend) == expected


def test_a_data_plane_that_comes_later_gets_the_memfds(make_copied: Callable[..., Any], plane: Plane) -> None:
    plane.kill()
    backend = make_copied()
    pool = backend.mem_pool_host
    assert backend.batch_set_v1(NAMES, pool.indices(SOURCE)) == [False] * 20
    plane.start()
    wait_for(lambda: all(backend.batch_set_v1(NAMES, pool.indices(SOURCE))), "it stores")


def test_a_memfd_that_was_truncated_is_a_miss(
    make_copied: Callable[..., Any], plane: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    backend = make_copied()
    pool = backend.mem_pool_host
    indices = pool.indices(SOURCE)
    os.ftruncate(pool.allocator.fds[0], 4096)
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        assert backend.batch_set_v1(NAMES, indices) == [False] * 20
    assert "20 of 20 pages were not stored: copy_failed" in caplog.text
    plane.wait_stats(lambda stats: not stats.pool.used_bytes, "nothing stays reserved")
    assert backend.batch_exists(NAMES) == 0


def test_a_pool_outside_a_memfd_is_copied_by_the_engine(
    make_backend: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        backend = make_backend(MHATokenToKVPoolHost(), store_copies="data_plane")
    assert "larder.store_copies: the engine copies, because the host pool is in 0 memfds" in caplog.text
    expected = store(backend)
    assert load(backend) == expected


def test_a_memfd_that_the_data_plane_refuses_is_copied_by_the_engine(
    make_backend: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    pool = MHATokenToKVPoolHost(shm=True)
    os.ftruncate(pool.allocator.fds[0], len(pool.allocator.mms[0]) + 4096)  # its end is not allocated
    with caplog.at_level(logging.WARNING, "larder.sglang"):
        backend = make_backend(pool, store_copies="data_plane")
    assert "the engine copies, because the data plane answered bad_cache" in caplog.text
    expected = store(backend)
    assert load(backend) == expected


def test_memfds_are_released_with_the_backend(make_copied: Callable[..., Any], plane: Plane) -> None:
    def opened(pid: int) -> int:
        folder, found = f"/proc/{pid}/fd", 0
        for name in os.listdir(folder):
            try:
                found += os.readlink(f"{folder}/{name}").startswith("/memfd:sglang_host_pool")
            except FileNotFoundError:
                continue
        return found

    pool = MHATokenToKVPoolHost(shm=True)
    gc.collect()
    before = opened(os.getpid())
    backend = make_copied(pool)
    store(backend)
    assert opened(plane.pid) == 1
    backend.close()
    wait_for(lambda: not opened(plane.pid), "the data plane closes it")
    assert opened(os.getpid()) == before, "those of SGLang stay"


# ---- where pages are


@pytest.mark.parametrize(("kind", "layout"), KINDS)
def test_offsets_of_pages_in_the_memfd(kind: Any, layout: str) -> None:
    pool = kind(layout, shm=True)
    pool.fill(list(range(PAGES)), 1)
    found = HostPages(pool).memfds()
    assert (list(found.fds), found.pages) == (pool.allocator.fds, PAGES)
    for number in (0, 7, PAGES - 1):
        content = b"".join(
            os.pread(pool.allocator.fds[each.file], each.nbytes, each.start + number * each.step)
            for each in found.pieces
        )
        assert content == pool.page(number)


def test_a_pool_of_one_page_has_places() -> None:
    pool = MHATokenToKVPoolHost(pages=1, shm=True)
    piece = pool.piece_bytes
    assert HostPages(pool).memfds().pieces == [HostPiece(0, 0, piece, piece), HostPiece(0, piece, piece, piece)]


def test_pages_outside_the_memfd_or_at_varying_distances_are_refused() -> None:
    pool, other = MHATokenToKVPoolHost(shm=True), MHATokenToKVPoolHost(shm=True)
    pages = HostPages(pool)
    pool.allocator.mms, mappings = other.allocator.mms, pool.allocator.mms
    with pytest.raises(PoolRefused, match="pages outside its memfds"):
        pages.memfds()
    pool.allocator.mms = mappings
    pool._starts = lambda page: [page * page]  # type: ignore[method-assign]
    with pytest.raises(PoolRefused, match="pages at varying distances"):
        pages.memfds()
