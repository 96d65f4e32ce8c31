"""What makes two KV blocks interchangeable, on each way in: a block is found by its space and its key.

Each row of a table changes one thing. `OTHER` expects another block, `SAME` the same one. The table for users is in
`docs/reference/identity.md`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from dataplane.copies.devices import Devices
from dataplane.devices.runtime import DeviceError, DeviceRuntime
from dataplane.engines.identity import digest_of
from dataplane.engines.sglang.page_keys import PageKeys
from dataplane.engines.vllm.layouts import copies_of, identity_of
from dataplane.engines.vllm.options import options_of
from dataplane.engines.vllm.request_keys import RequestKeys
from dataplane.engines.weights import WeightsUnknown
from dataplane.gateways.lmcache.handlers.chains import RequestChains
from dataplane.gateways.lmcache.wire.messages import EngineContext, Key
from dataplane.gateways.lmcache.workers.chunk_layouts import chunk_layout_of
from dataplane.gateways.lmcache.workers.registrations import RegisteredWorker
from tests.engines.model_folder import write_folder, write_weights
from tests.engines.sglang.fakes import MHATokenToKVPoolHost, MLATokenToKVPoolHost, StorageConfig, fake_sglang
from tests.engines.vllm.fakes import BLOCKS, CHUNK_TOKENS, PAGE_TOKENS, Request, image, vllm_options

Change = Callable[[Any], object]
Block = tuple[str, bytes]
"""Identity of the space, and key."""


@dataclass
class Vllm:
    """An engine with Larder's connector, and its request."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    served: str = ""
    named: str = ""
    model: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    """Attributes of vLLM's other configurations."""
    defaults: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Defaults that are not None, by configuration."""
    request: dict[str, Any] = field(default_factory=dict)
    layers: tuple[str, ...] = ("layers.0", "layers.1")
    page_tokens: int = PAGE_TOKENS
    layout: str = "LBHNC"
    cache_dtype: str = "auto"
    dtype: Any = torch.bfloat16
    rank: int = 0
    world_size: int = 1
    heads: int = 2
    adapter: str = ""
    """Identity of an adapter's files; `test_request_keys.py` varies these."""
    namespace: str = ""

    def block(self) -> Block:
        options = {
            "model": {"model": str(self.folder), "served_model_name": self.served or str(self.folder),
                      "dtype": self.dtype, "max_model_len": 4096, **self.model},
            "cache": {"cache_dtype": self.cache_dtype},
            "multimodal": {}, "attention": {}, "lora": {},
        }  # fmt: skip
        config = SimpleNamespace(
            parallel_config=SimpleNamespace(world_size=self.world_size),
            load_config=SimpleNamespace(**{"load_format": "auto", "download_dir": None, **self.others.get("load", {})}),
            speculative_config=self.others.get("speculative"),
            **{
                f"{name}_config": vllm_options(self.defaults.get(name, {}), {**values, **self.others.get(name, {})})
                for name, values in options.items()
            },
        )
        spec = type("FullAttentionSpec", (), {"block_size": self.page_tokens})()
        group = SimpleNamespace(kv_cache_spec=spec, layer_names=self.layers)
        caches = SimpleNamespace(kv_cache_groups=[group], num_blocks=BLOCKS, kv_cache_layout=self.layout)
        shape = BLOCKS, self.heads, self.page_tokens, 8
        tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name in self.layers}
        identity = identity_of(config, self.named)
        (copies,) = copies_of(config, caches, tensors, rank=self.rank, identity=identity, chunk_tokens=CHUNK_TOKENS)
        request = Request(**{"request_id": "r", "all_token_ids": list(range(200)), **self.request})
        adapter = self.adapter and self.adapter + digest_of(options_of(config, ["lora_config"]))
        keys = RequestKeys(request, CHUNK_TOKENS, adapter=adapter, namespace=self.namespace).extend(request, 200)
        return copies.layout.space.identity(), keys[-1]


@dataclass
class Sglang:
    """An engine with Larder's backend, and the hash of a page."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    arguments: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    pool: Any = field(default_factory=MHATokenToKVPoolHost)
    page: str = "a" * 64

    def block(self) -> Block:
        fake_sglang(self.monkeypatch, **{"model_path": str(self.folder), "weight_version": "default", **self.arguments})
        module = import_module("dataplane.engines.sglang.backend")
        spaces = []

        class Store:
            def __init__(self, settings: Any, space: Any, *_: Any, **__: Any) -> None:
                spaces.append(space)
                self.tenant = settings.tenant

            def close(self) -> None:
                pass

        self.monkeypatch.setattr(module, "PageStore", Store)
        extra = {"interface_v1": 1, **{f"larder.{name}": value for name, value in self.settings.items()}}
        backend = module.LarderBackend(StorageConfig(extra, **{"model_name": str(self.folder), **self.config}))
        backend.register_mem_pool_host(self.pool)
        return spaces[0].identity(), PageKeys(self.settings.get("tenant", "")).of([self.page])


def _no_device() -> DeviceRuntime:
    raise DeviceError("none", "this worker copies by itself")


@dataclass
class Lmcache:
    """An engine with LMCache's connector, which names its model by vLLM's `--model`."""

    worker: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    rank: int = 0

    def block(self) -> Block:
        worker = {"model_name": "/models/m", "world_size": 1, "block_size": 16, "num_layers": 4, "hidden_dim_size": 64,
                  "dtype_str": "bfloat16", "use_mla": False, **self.worker}  # fmt: skip
        registered = RegisteredWorker(1, 1, 1, 1, 1, engine=EngineContext(instance_id=1, **worker))
        layout = chunk_layout_of(registered, Devices(_no_device, {}, None))
        spaces = layout.spaces(registered.model_name, registered.world_size)
        tokens = self.request.get("tokens", list(range(512)))
        salt = self.request.get("cache_salt", "")
        raw = msgspec.Raw(msgspec.msgpack.encode(tokens))
        key = Key(registered.model_name, registered.world_size, 0, 0, 512, "r", token_ids=raw, cache_salt=salt)
        return spaces[self.rank].identity(), RequestChains().of(key)[0].packed[-32:]


# ---- what is in a folder, for vLLM and SGLang alike


def rewrite(engine: Any, **config: object) -> None:
    """Replace the model's files by others of the same names and shapes."""
    write_folder(engine.folder, **config)  # type: ignore[arg-type]


def move(engine: Any) -> None:
    """Copy the model to another place, with other times and inodes."""
    copy = Path(shutil.copytree(engine.folder, engine.folder.parent / "elsewhere" / "copy"))
    for path in copy.iterdir():
        os.utime(path, (5, 5))
    engine.folder = copy


def write(name: str, text: str) -> Change:
    return lambda engine: (engine.folder / name).write_text(text)


def put(name: str, **values: Any) -> Change:
    """Return a change of attributes, or of entries of an attribute that is a dictionary."""

    def change(engine: Any) -> None:
        getattr(engine, name).update(values)

    return change


def become(**values: Any) -> Change:
    def change(engine: Any) -> None:
        for name, value in values.items():
            setattr(engine, name, value)

    return change


FOLDER_OTHER: dict[str, Change] = {
    "weights": lambda engine: rewrite(engine, seed=2),
    "configuration": lambda engine: rewrite(engine, rope_theta=5e5),
    "rope scaling": lambda engine: rewrite(engine, rope_scaling={"rope_type": "yarn", "factor": 4.0}),
    "code": write("modeling_own.py", "x = 1"),
    "scales of a quantized checkpoint": write("hf_quant_config.json", '{"kv_cache_quant_algo": "FP8"}'),
    "preprocessor of images": write("preprocessor_config.json", '{"image_mean": [0]}'),
}
FOLDER_SAME: dict[str, Change] = {
    "nothing": lambda engine: None,
    "path, times and inodes": move,
    "tokenizer": write("tokenizer.json", "{}"),
    "generation settings": write("generation_config.json", '{"temperature": 0.1}'),
}

# ---- rows: the changes that each way in has beside these


def have_other_tiles(engine: Vllm) -> None:
    """Run on a CPU with AMX, or on one without it."""
    has_tiles = torch.cpu._is_amx_tile_supported()
    engine.monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: not has_tiles)


LONGROPE = SimpleNamespace(rope_parameters={"rope_type": "longrope"})
VLLM_OTHER: dict[str, Change] = {
    **FOLDER_OTHER,
    "name": become(named="m"),
    "served name of a folder": become(served="m"),
    "draft model": lambda engine: engine.others.update(
        speculative=SimpleNamespace(
            draft_model_config=SimpleNamespace(model=str(write_folder(engine.folder.parent / "draft", 7)))
        )
    ),
    "draft model in another format": lambda engine: engine.others.update(
        speculative=SimpleNamespace(
            draft_model_config=SimpleNamespace(model=str(write_folder(engine.folder.parent / "draft"))),
            draft_load_config=SimpleNamespace(load_format="dummy", download_dir=None),
        )
    ),
    "draft model of another revision": lambda engine: engine.others.update(
        speculative=SimpleNamespace(draft_model_config=SimpleNamespace(model=str(engine.folder), revision="draft"))
    ),
    "part of another model": lambda engine: put(
        "model", hf_config=SimpleNamespace(text_model_id=str(write_folder(engine.folder.parent / "text", 7)))
    )(engine),
    "weights made up": lambda engine: engine.others.update(load={"load_format": "dummy"}),
    "files that a loader chooses": lambda engine: engine.others.update(
        load={"model_loader_extra_config": {"pattern": "other-rank-{rank}-part-{part}.safetensors"}}
    ),
    "quantization": put("model", quantization="fp8"),
    "quantization of layers": put("model", quantization_config={"ignore": ["k_proj"]}),
    "overrides": put("model", hf_overrides={"rope_theta": 1}),
    "configuration elsewhere": lambda engine: put(
        "model", hf_config_path=str(write_folder(engine.folder.parent / "config", files=0, rope_theta=1))
    )(engine),
    "LongRoPE": put("model", hf_text_config=LONGROPE),
    "sliding windows off": put("model", disable_sliding_window=True),
    "options of the image processor": put("others", multimodal={"mm_processor_kwargs": {"crop": 1}}),
    "pruning of videos": put("others", multimodal={"video_pruning_rate": 0.5}),
    "method of pruning": put("others", multimodal={"video_pruning_method": "vidcom2"}),
    "frames of videos": put("others", multimodal={"media_io_kwargs": {"video": {"fps": 1}}}),
    "class of the model": put("model", model_class_overrides={"LlamaForCausalLM": "m:X"}),
    "attention to later tokens": put("others", attention={"use_non_causal": True}),
    "dtype": become(dtype=torch.float16),
    "KV dtype": become(cache_dtype="fp8"),
    "layers without a KV dtype": lambda engine: engine.others.update(cache={"kv_cache_dtype_skip_layers": ["0"]}),
    "layers": become(layers=("layers.0", "layers.2")),
    "order of bytes": become(layout="LBNHC"),
    "tokens in a block": become(page_tokens=2 * PAGE_TOKENS),
    "heads": become(heads=4),
    "instructions of the CPU": have_other_tiles,
    "world size": become(world_size=2),
    "rank": become(world_size=2, rank=1),
    "reset": become(namespace="reset-1"),
    "tenant": put("request", cache_salt="acme"),
    "a token": put("request", all_token_ids=[1, *range(1, 200)]),
    "adapter": become(adapter="a"),
    "image": put("request", mm_features=[image("f" * 64, 10, 5)]),
    "embeddings": put("request", prompt_embeds=torch.ones(200, 4)),
}
VLLM_SAME: dict[str, Change] = {
    "where pixels are normalized": put("model", mm_device_do_normalize=False),
    "threads of a loader": lambda engine: engine.others.update(
        load={"model_loader_extra_config": {"enable_multithread_load": True, "num_threads": 8}}
    ),
    **FOLDER_SAME,
    "longest sequence": put("model", max_model_len=8192),
    "memory": put("others", cache={"gpu_memory_utilization": 0.5}),
    "kernels": put("others", attention={"backend": "FLASH_ATTN"}),
    "what is made of adapters, for a request without one": put("others", lora={"target_modules": ["q_proj"]}),
    "revision of the same files": put("model", revision="main"),
    "configuration at another path": lambda engine: put(
        "model", hf_config_path=str(write_folder(engine.folder.parent / "config", files=0))
    )(engine),
    "draft by n-grams": lambda engine: engine.others.update(
        speculative=SimpleNamespace(draft_model_config=SimpleNamespace(model=str(engine.folder)))
    ),
}
SGLANG_OTHER: dict[str, Change] = {
    "files that a loader chooses": put("arguments", model_loader_extra_config='{"pattern": "a-{rank}.safetensors"}'),
    **FOLDER_OTHER,
    "name": put("settings", model="m"),
    "served name": put("config", model_name="m"),
    "tag of the host pool": lambda engine: put("config", model_name=f"{engine.folder}-tag")(engine),
    "revision": put("settings", revision="2"),
    "version of the weights": put("arguments", weight_version="2"),
    "quantization": put("arguments", quantization="fp8"),
    "KV dtype": put("arguments", kv_cache_dtype="fp8_e4m3"),
    "dtype under a KV dtype": put("arguments", kv_cache_dtype="fp8_e4m3", dtype="half"),
    "scales": lambda engine: put("arguments", quantization_param_path=str(engine.folder / "config.json"))(engine),
    "device": put("arguments", device="cpu"),
    "overrides": put("arguments", json_model_override_args='{"rope_theta": 1}'),
    "weights made up": put("arguments", load_format="dummy"),
    "options of the image processor": put("arguments", mm_process_config='{"image": {}}'),
    "weights of experts": put("arguments", kt_weight_path="/experts", kt_method="AMXINT8"),
    "position embeddings of images": put("arguments", enable_precise_embedding_interpolation=True),
    "precision of experts": put("arguments", flashinfer_mxfp4_moe_precision="fp8"),
    "algorithm of a diffusion model": put("arguments", dllm_algorithm="LowConfidence"),
    "hooks": put("arguments", forward_hooks=[{"hook_factory": "m.f"}]),
    "clients' digests of images": put("arguments", trust_mm_content_hashes=True),
    "image processor": put("arguments", image_processor_backend="pil"),
    "argument of a later release": put("arguments", rotate_keys_twice=True),
    "kind of the pool": become(pool=MLATokenToKVPoolHost()),
    "order of bytes": become(pool=MHATokenToKVPoolHost("page_first_direct")),
    "tokens in a page": become(pool=MHATokenToKVPoolHost(page_tokens=32)),
    "world size": put("config", tp_size=2),
    "rank": put("config", tp_size=2, tp_rank=1),
    "stage": put("config", pp_size=2, pp_rank=1),
    "context parallel": put("config", attn_cp_size=2, attn_cp_rank=1),
    "tenant": put("settings", tenant="acme"),
    "tokens, adapter, images and salt, in SGLang's hash": become(page="b" * 64),
}
SGLANG_SAME: dict[str, Change] = {
    **FOLDER_SAME,
    "threads of a loader": put("arguments", model_loader_extra_config='{"num_threads": 8}'),
    "number of threads": put("settings", copy_threads=4),
    "port": put("arguments", port=30001),
    "memory": put("arguments", mem_fraction_static=0.5),
    "kernels": put("arguments", attention_backend="triton"),
    "modules of adapters, without one": put("arguments", lora_target_modules=["q_proj"]),
    "revision of the same files": put("arguments", revision="main"),
    "repository of ModelScope in that folder": lambda engine: put(
        "arguments", model_path="org/name", resolved={"model_path": str(engine.folder)}
    )(engine),
}
LMCACHE_OTHER: dict[str, Change] = {
    "name": put("worker", model_name="/models/n"),
    "world size": put("worker", world_size=2),
    "rank": lambda engine: [put("worker", world_size=2)(engine), become(rank=1)(engine)],
    "layers": put("worker", num_layers=5),
    "heads": put("worker", hidden_dim_size=128),
    "KV dtype": put("worker", dtype_str="float8_e4m3fn"),
    "latent attention": put("worker", use_mla=True),
    "tenant": put("request", cache_salt="acme"),
    "a token": put("request", tokens=[1, *range(1, 512)]),
}
LMCACHE_SAME: dict[str, Change] = {"nothing": lambda engine: None}
ENGINES: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], Any], dict[str, Any], dict[str, Any]]] = {
    "vllm": (Vllm, VLLM_OTHER, VLLM_SAME),
    "sglang": (Sglang, SGLANG_OTHER, SGLANG_SAME),
    "lmcache": (lambda folder, patch: Lmcache(), LMCACHE_OTHER, LMCACHE_SAME),
}


def rows(table: int) -> list[Any]:
    return [
        pytest.param(engine, change, id=f"{engine}: {name}")
        for engine, found in ENGINES.items()
        for name, change in found[table].items()
    ]


@pytest.fixture
def make_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    return lambda engine: ENGINES[engine][0](write_folder(tmp_path / "m"), monkeypatch)


@pytest.mark.parametrize(("engine", "change"), rows(1))
def test_a_change_that_other_values_follow_from_is_a_miss(
    make_engine: Callable[[str], Any], engine: str, change: Change
) -> None:
    one = make_engine(engine)
    before = one.block()
    change(one)
    assert one.block() != before


@pytest.mark.parametrize(("engine", "change"), rows(2))
def test_a_change_of_places_times_and_names_of_files_is_a_hit(
    make_engine: Callable[[str], Any], engine: str, change: Change
) -> None:
    one = make_engine(engine)
    before = one.block()
    change(one)
    assert one.block() == before


def adapter(folder: Path, name: str = "a", seed: int = 1, rank: int = 8) -> SimpleNamespace:
    """Write an adapter's files. Return SGLang's reference to it: its hash of a page has only the name and the path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(f'{{"r": {rank}}}')
    write_weights(folder / "adapter_model.safetensors", seed=seed)
    return SimpleNamespace(lora_name=name, lora_path=str(folder))


@pytest.mark.parametrize("vouched", [False, True])
def test_contents_of_sglangs_adapters_count_and_their_places_do_not(
    make_engine: Callable[[str], Any], tmp_path: Path, vouched: bool
) -> None:
    def block(*adapters: SimpleNamespace, **arguments: Any) -> Block:
        one = make_engine("sglang")
        one.settings = {"model": "m"} if vouched else {}
        one.arguments = {"enable_lora": True, "lora_paths": [*adapters], **arguments}
        found: Block = one.block()
        return found

    without = block()
    before = block(adapter(tmp_path / "a"))
    copied = block(adapter(tmp_path / "copy"))
    trained = block(adapter(tmp_path / "a", seed=2))
    rescaled = block(adapter(tmp_path / "a", rank=16))
    two = [adapter(tmp_path / "a"), adapter(tmp_path / "b", "b", seed=2)]
    swapped = [adapter(tmp_path / "c"), adapter(tmp_path / "d", "b")]
    assert before == copied
    assert len({without, before, trained, rescaled, block(*two), block(*swapped)}) == 6
    assert block(*two) == block(*reversed(two))
    assert block(*two, enable_lora=False) == without, "SGLang ignores the adapters"


def test_of_files_and_folders_that_sglangs_arguments_name_the_contents_count(
    make_engine: Callable[[str], Any], tmp_path: Path
) -> None:
    def block(path: Path, **arguments: Any) -> Block:
        one = make_engine("sglang")
        one.arguments = {"kt_weight_path": str(path), **arguments}
        found: Block = one.block()
        return found

    experts = write_folder(tmp_path / "experts" / "parts").parent
    before = block(experts)
    assert block(Path(shutil.copytree(experts, tmp_path / "copy"))) == before
    write_folder(experts / "parts", 2)
    trained = block(experts)
    (experts / "more").touch()
    assert len({before, trained, block(experts), block(experts / "more")}) == 4


@pytest.mark.parametrize("vouched", [False, True])
def test_a_draft_model_counts_if_sglangs_pages_have_layers_of_it(
    make_engine: Callable[[str], Any], tmp_path: Path, vouched: bool
) -> None:
    def block(draft_layers: int, seed: int, **arguments: Any) -> Block:
        one = make_engine("sglang")
        one.settings = {"model": "m"} if vouched else {}
        one.pool = MHATokenToKVPoolHost(draft_layers=draft_layers)
        draft = write_folder(tmp_path / "draft", seed)
        one.arguments = {"speculative_draft_model_path": str(draft), "speculative_algorithm": "EAGLE", **arguments}
        found: Block = one.block()
        return found

    same_model = block(1, 1, speculative_draft_model_path=str(tmp_path / "m"))
    assert (block(1, 1) == block(1, 2)) is vouched
    assert (block(1, 1) == same_model) is vouched
    assert block(1, 1) != block(1, 1, speculative_algorithm="EAGLE3")
    assert block(0, 1) == block(0, 2, speculative_algorithm="EAGLE3")


@pytest.mark.parametrize(
    "arguments",
    [{"checkpoint_engine_wait_weights_before_ready": True}, {"weight_cache_mode": "client"}],
    ids=lambda arguments: next(iter(arguments)),
)
def test_sglang_with_weights_from_another_process_needs_a_name(
    make_engine: Callable[[str], Any], arguments: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    one = make_engine("sglang")
    one.arguments = arguments
    with pytest.raises(IndexError):
        one.block()
    assert "; or name the weights with larder.model" in caplog.text
    one.settings = {"model": "m"}
    assert one.block()


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors", ""])
def test_sglang_does_without_larder_if_an_adapter_cannot_be_read(
    make_engine: Callable[[str], Any], tmp_path: Path, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = make_engine("sglang")
    unreadable = adapter(tmp_path / "a")
    (shutil.rmtree if not missing else os.remove)(tmp_path / "a" / missing)
    one.arguments = {"enable_lora": True, "lora_paths": [unreadable]}
    with pytest.raises(IndexError):
        one.block()
    assert "Larder is not used: the adapter a of --lora-paths: " in caplog.text


@pytest.mark.parametrize("part", ["model", "multimodal", "cache", "attention", "lora"])
def test_an_option_that_larder_does_not_know_counts_unless_it_has_its_default(
    make_engine: Callable[[str], Any], part: str
) -> None:
    """So releases share, and an option of a later one separates blocks."""
    one = make_engine("vllm")
    one.adapter = "a"
    before = one.block()
    one.defaults = {part: {"of_a_later_release": 1}}
    assert one.block() == before
    one.others[part] = {"of_a_later_release": 2}
    assert one.block() != before


def test_with_a_name_too_revision_quantization_and_overrides_count(make_engine: Callable[[str], Any]) -> None:
    changes = [
        {},
        {"revision": "a"},
        {"quantization": "a"},
        {"hf_overrides": {"rope_theta": 1}},
        {"hf_config_path": "/other"},
        {"revision": "r" * 256, "hf_overrides": {"rope_theta": 1}},
        {"revision": "r" * 256, "hf_overrides": {"rope_theta": 2}},
    ]
    engines = [make_engine("vllm") for _ in changes]
    for engine, model in zip(engines, changes, strict=True):
        engine.named, engine.model = "m", model
    assert len({engine.block() for engine in engines}) == len(changes)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_operator_who_names_the_model_vouches_for_its_weights(
    make_engine: Callable[[str], Any], engine: str
) -> None:
    one = make_engine(engine)
    become(named="m")(one) if engine == "vllm" else put("settings", model="m")(one)
    before = one.block()
    rewrite(one, seed=2)
    assert one.block() == before
    shutil.rmtree(one.folder)
    assert one.block() == before


def test_what_llama_4_scales_queries_by_counts(make_engine: Callable[[str], Any]) -> None:
    def block(**options: Any) -> Block:
        one = make_engine("vllm")
        text = SimpleNamespace(model_type="llama4_text")
        generation = {"override_generation_config": {}, "try_get_generation_config": dict}
        one.model.update({"hf_text_config": text, **generation, **options})
        found: Block = one.block()
        return found

    tuned = block(max_model_len=65_536)
    assert block(max_model_len=16_384) == block(max_model_len=32_768) != tuned
    assert block(override_generation_config={"attn_temperature_tuning": True}) == tuned


@pytest.mark.parametrize(
    ("engine", "name"), [("vllm", "VLLM_HUMMING_ONLINE_QUANT_CONFIG"), ("sglang", "SGLANG_SIMULATE_UNIFORM_EXPERTS")]
)
def test_variables_that_change_values_count(
    make_engine: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, engine: str, name: str
) -> None:
    before = make_engine(engine).block()
    monkeypatch.setenv(name, "1")
    assert make_engine(engine).block() != before


def test_of_an_option_that_names_a_file_the_contents_count(make_engine: Callable[[str], Any], tmp_path: Path) -> None:
    def block(text: str, path: Path) -> Block:
        path.write_text(text)
        one = make_engine("vllm")
        one.others["multimodal"] = {"mm_encoder_fp8_scale_path": str(path)}
        found: Block = one.block()
        return found

    assert block("1", tmp_path / "a") == block("1", tmp_path / "b") != block("2", tmp_path / "a")


def test_the_commit_of_a_configuration_elsewhere_does_not_stand_for_the_weights(
    make_engine: Callable[[str], Any], tmp_path: Path
) -> None:
    one = make_engine("vllm")
    one.model = {"model": "org/not-downloaded", "hf_config": SimpleNamespace(_commit_hash="c" * 40)}
    assert one.block()
    one.model["hf_config_path"] = str(tmp_path / "m")
    with pytest.raises(WeightsUnknown, match="neither a folder nor a repository"):
        one.block()


def test_a_draft_models_quantization_counts(make_engine: Callable[[str], Any], tmp_path: Path) -> None:
    def block(**draft: Any) -> Block:
        one = make_engine("vllm")
        config = SimpleNamespace(model=str(write_folder(tmp_path / "draft")), **draft)
        one.others["speculative"] = SimpleNamespace(draft_model_config=config)
        found: Block = one.block()
        return found

    assert block() == block(quantization=None) != block(quantization="fp8")


def test_functions_as_overrides_need_a_name(make_engine: Callable[[str], Any]) -> None:
    one = make_engine("vllm")
    one.model["hf_overrides"] = lambda config: config
    with pytest.raises(WeightsUnknown, match="hf_overrides is a function"):
        one.block()
    one.named = "m"
    named = one.block()
    one.model["hf_overrides"] = lambda config: config
    assert one.block() == named


def test_the_order_of_an_options_keys_does_not_count() -> None:
    one, other = {"min_pixels": 1, "max_pixels": 2}, {"max_pixels": 2, "min_pixels": 1}
    assert digest_of([("mm_processor_kwargs", one)]) == digest_of([("mm_processor_kwargs", other)])
    assert digest_of([("mm_processor_kwargs", one)]) != digest_of([("mm_processor_kwargs", {**one, "max_pixels": 3})])
