"""Larder's backend in SGLang's own StorageBackendFactory, HybridCacheController and host pools, on CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.plane import Plane, wait_for
from tests.engines.model_folder import write_weights
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


def test_salts_are_isolated_by_the_names_of_pages(make_controller: Callable[..., Controller]) -> None:
    engine = make_controller()
    acme = engine.do("backup", tokens=TOKENS, salt="acme", seed=1)
    assert engine.do("prefetch", tokens=TOKENS)["hits"] == 0
    assert engine.do("prefetch", tokens=TOKENS, salt="rival")["hits"] == 0
    rival = engine.do("backup", tokens=TOKENS, salt="rival", seed=2)
    assert engine.do("prefetch", tokens=TOKENS, salt="acme")["pages"] == acme["pages"]
    assert engine.do("prefetch", tokens=TOKENS, salt="rival")["pages"] == rival["pages"]


def test_a_data_plane_that_is_killed_frozen_or_gone_costs_only_misses(
    make_controller: Callable[..., Controller], plane: Plane
) -> None:
    engine = make_controller(larder_timeout_s=0.1)
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
    engine = make_controller()
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


def test_sglangs_arguments_count_unless_they_leave_values_as_they_are(processes: list[Process], tmp_path: Path) -> None:
    def identity(**given: Any) -> str:
        return json.dumps(processes[0].do("arguments", of=given)["identity"])

    found = processes[0].do("arguments", of={})
    assert found["unknown"] == [], "arguments of Larder's list that this release lacks"
    write_weights(tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text("{}")
    plain, with_adapter = json.dumps(found["identity"]), identity(lora_paths=[f"a={tmp_path}"])
    assert plain == identity(port=1, attention_backend="triton", mem_fraction_static=0.5, eplb_algorithm="x")
    write_weights(tmp_path / "adapter_model.safetensors", seed=2)
    others: list[dict[str, Any]] = [
        {"lora_paths": [f"a={tmp_path}"]},
        {"kt_weight_path": "/experts"},
        {"kt_num_gpu_experts": 1},
        {"enable_precise_embedding_interpolation": True},
        {"enable_w4a4_mxfp4_megamoe": True},
        {"flashinfer_mxfp4_moe_precision": "fp8"},
        {"dllm_algorithm": "LowConfidence"},
        {"forward_hooks": [{"hook_factory": "m.f"}]},
        {"trust_mm_content_hashes": True},
        {"mm_process_config": {"image": {}}},
        {"weight_version": "2"},
    ]
    assert len({plain, with_adapter, *(identity(**other) for other in others)}) == 2 + len(others)


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
    assert pieces == (LAYERS if layout == "layer_first" else 1) * fake.planes
    assert {*vars(StorageConfig({}))} <= {*found["config"]}
