"""Larder's backend in SGLang's own StorageBackendFactory, HybridCacheController and host pools, on CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.plane import Plane, wait_for
from tests.engines.sglang.controller import Controller, Process
from tests.engines.sglang.fakes import LAYERS, PAGE_TOKENS, MHATokenToKVPoolHost, MLATokenToKVPoolHost, StorageConfig

TOKENS = list(range(700, 700 + 10 * PAGE_TOKENS + 5))
CHUNKED = 10 * PAGE_TOKENS


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Process]]:
    """Two processes. Each takes many seconds to import SGLang, so all tests of the file share them."""
    folder = tmp_path_factory.mktemp("sglang")
    made = [Process(folder / f"{at}.log") for at in range(2)]
    try:
        yield [each.ready() for each in made]
    finally:
        for each in made:
            each.close()


@pytest.fixture
def make_controller(processes: list[Process], plane: Plane) -> Iterator[Callable[..., Controller]]:
    """`make_controller(1, kind="mla")`: a controller in the second process."""
    made: list[Controller] = []

    def new(process: int = 0, **options: Any) -> Controller:
        made.append(Controller(processes[process], f"{plane.socket}-{len(made)}", plane.socket, **options))
        return made[-1]

    yield new
    for each in made:
        each.close()


def host_pool_files(plane: Plane) -> int:
    """Number of memfds of SGLang's host pools that the data plane has open."""
    folder = Path(f"/proc/{plane.pid}/fd")
    return sum("/memfd:sglang_host_pool" in os.readlink(each) for each in list(folder.iterdir()))


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("mha", "layer_first"),
        ("mha", "page_first"),
        ("mha", "page_first_direct"),
        ("asymmetric", "page_first"),
        ("mla", "layer_first"),
        ("mla", "page_first"),
        ("mla", "page_first_direct"),
    ],
)
def test_another_process_prefetches_pages_that_one_backed_up(
    make_controller: Callable[..., Controller], kind: str, layout: str
) -> None:
    one, other = (make_controller(at, kind=kind, layout=layout, larder_verify="always") for at in range(2))
    assert one.opened == {"opened": "LarderBackend"}
    assert other.do("prefetch", tokens=TOKENS) == {"hits": 0, "completed": 0, "pages": []}
    backed_up = one.do("backup", tokens=TOKENS, seed=1)
    assert backed_up["tokens"] == CHUNKED
    found = other.do("prefetch", tokens=TOKENS)
    assert found == {"hits": CHUNKED, "completed": CHUNKED, "pages": backed_up["pages"]}
    longer = other.do("prefetch", tokens=TOKENS[: 5 * PAGE_TOKENS] + [1] * 40)
    assert (longer["hits"], longer["pages"]) == (5 * PAGE_TOKENS, backed_up["pages"][:5])
    assert other.do("stats") == {"prefetch_pgs": [10, 5], "backup_pgs": []}


@pytest.mark.parametrize(
    ("kind", "layout", "files"),
    [
        ("mha", "layer_first", 1),
        ("mha", "page_first_direct", 1),
        ("asymmetric", "page_first", 2),
        ("mla", "layer_first", 1),
        ("mla", "page_first", 1),
    ],
)
def test_the_data_plane_copies_backups_from_the_memfds_of_the_host_pool(
    make_controller: Callable[..., Controller], plane: Plane, kind: str, layout: str, files: int
) -> None:
    one = make_controller(0, kind=kind, layout=layout, larder_store_copies="data_plane")
    other = make_controller(1, kind=kind, layout=layout, larder_verify="always")
    backed_up = one.do("backup", tokens=TOKENS, seed=1)
    assert backed_up["tokens"] == CHUNKED
    assert host_pool_files(plane) == files
    found = other.do("prefetch", tokens=TOKENS)
    assert found == {"hits": CHUNKED, "completed": CHUNKED, "pages": backed_up["pages"]}
    again = one.do("prefetch", tokens=TOKENS)
    assert again == found


def test_without_the_allocator_shm_the_engine_copies(make_controller: Callable[..., Controller], plane: Plane) -> None:
    engine = make_controller(allocator="", larder_store_copies="data_plane")
    backed_up = engine.do("backup", tokens=TOKENS, seed=1)
    assert host_pool_files(plane) == 0
    assert engine.do("prefetch", tokens=TOKENS)["pages"] == backed_up["pages"]


def test_salts_are_isolated_by_the_names_of_pages(make_controller: Callable[..., Controller]) -> None:
    engine = make_controller()
    acme = engine.do("backup", tokens=TOKENS, salt="acme", seed=1)
    assert engine.do("prefetch", tokens=TOKENS)["hits"] == 0
    assert engine.do("prefetch", tokens=TOKENS, salt="rival")["hits"] == 0
    rival = engine.do("backup", tokens=TOKENS, salt="rival", seed=2)
    assert engine.do("prefetch", tokens=TOKENS, salt="acme")["pages"] == acme["pages"]
    assert engine.do("prefetch", tokens=TOKENS, salt="rival")["pages"] == rival["pages"]


@pytest.mark.parametrize("copies", ["engine", "data_plane"])
def test_a_data_plane_that_is_killed_frozen_or_gone_costs_only_misses(
    make_controller: Callable[..., Controller], plane: Plane, copies: str
) -> None:
    engine = make_controller(larder_timeout_s=0.1, larder_store_copies=copies)
    wait_for(lambda: engine.do("backup", tokens=TOKENS, seed=1)["tokens"] == CHUNKED, "it is stored")
    expected = engine.do("prefetch", tokens=TOKENS)
    with plane.frozen():
        assert engine.do("prefetch", tokens=TOKENS) == expected
        assert engine.do("backup", tokens=TOKENS[1:], seed=2)["tokens"] == 0
    plane.kill()
    found = engine.do("prefetch", tokens=TOKENS)
    assert found["pages"] == expected["pages"][: len(found["pages"])]
    assert engine.do("backup", tokens=TOKENS[2:], seed=2)["tokens"] == 0
    plane.start()

    def stored() -> bool:
        return bool(engine.do("backup", tokens=TOKENS, seed=1)["tokens"] == CHUNKED)

    wait_for(stored, "it stores again", 30)
    assert engine.do("prefetch", tokens=TOKENS)["pages"] == expected["pages"]


def test_rank_1_with_latent_attention_reads_blocks_of_rank_0(make_controller: Callable[..., Controller]) -> None:
    ranks = [make_controller(rank, kind="mla", rank=rank, ranks=2) for rank in range(2)]
    skipped = ranks[1].do("backup", tokens=TOKENS, seed=2)
    assert skipped["tokens"] == 0
    assert ranks[1].do("prefetch", tokens=TOKENS)["hits"] == 0
    written = ranks[0].do("backup", tokens=TOKENS, seed=1)
    assert ranks[1].do("prefetch", tokens=TOKENS)["pages"] == written["pages"]


def test_a_second_host_pool_ends_the_use_with_a_reason(
    make_controller: Callable[..., Controller], processes: list[Process]
) -> None:
    engine = make_controller(larder_store_copies="data_plane")
    engine.do("backup", tokens=TOKENS, seed=1)
    assert engine.do("prefetch", tokens=TOKENS)["hits"] == CHUNKED
    misses = [[False, False]]
    assert engine.do("second_pool") == {"before": 0, "hits": 0, "loaded": misses, "stored": misses}
    assert "Larder is not used: the model has the additional host pool 'mamba'" in processes[0].text()
    assert engine.do("prefetch", tokens=TOKENS)["hits"] == 0
    assert engine.do("backup", tokens=TOKENS, seed=1)["tokens"] == 0


def test_clearing_the_storage_makes_pages_a_miss(make_controller: Callable[..., Controller]) -> None:
    engine = make_controller()
    engine.do("backup", tokens=TOKENS, seed=1)
    assert engine.do("clear") == {"done": True}
    assert engine.do("prefetch", tokens=TOKENS)["hits"] == 0
    assert engine.do("backup", tokens=TOKENS, seed=2)["tokens"] == CHUNKED


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"larder_verify": "yes"}, "larder.verify: expected off, sample or always, got 'yes'"),
        ({"interface_v1": 0}, "interface_v1: expected 1, got 0"),
    ],
)
def test_an_invalid_setting_ends_the_engine_with_its_name(
    make_controller: Callable[..., Controller], settings: dict[str, Any], message: str
) -> None:
    engine = make_controller(**settings)
    assert engine.opened["error"].endswith(f"hicache_storage_backend_extra_config.{message}")


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
@pytest.mark.parametrize("fake", [MHATokenToKVPoolHost, MLATokenToKVPoolHost])
def test_the_fake_pool_has_the_shape_of_the_real_one(
    make_controller: Callable[..., Controller], fake: Any, layout: str
) -> None:
    engine = make_controller(kind="mla" if fake is MLATokenToKVPoolHost else "mha", layout=layout)
    found = engine.do("shape")
    pool = fake(layout)
    addresses, sizes = pool.get_page_buffer_meta(pool.indices([0, 1]))
    pieces = len(addresses) // 2
    assert found["kind"] == fake.__name__
    assert found["sizes"] == sizes[:pieces]
    assert found["steps"] == [addresses[pieces + at] - addresses[at] for at in range(pieces)]
    assert found["attributes"] == ["page_size", "size", "layout", "dtype"]
    assert found["memfd"], "the allocator shm puts the pool into a memfd"
    assert found["memfds"] == found["mapped"], "the backend finds its descriptors and mappings"
    assert len(found["memfds"]) == len(fake(layout, shm=True).allocator.fds)
    assert pieces == (LAYERS if layout == "layer_first" else 1) * fake.planes
    assert {*vars(StorageConfig({}))} <= {*found["config"]}
