"""Derive the spaces and copies of a worker's KV caches from vLLM's configuration and tensors."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import Any

import msgspec

from dataplane.client.client import Client
from dataplane.client.gpu import PagedCache
from dataplane.devices.paged import LayoutRefused, Planes, TensorGroup, block_axis, planes_of
from dataplane.devices.runtime import DeviceEvent
from dataplane.engines import weights
from dataplane.engines.identity import digest_of, revision_of
from dataplane.engines.pages import pages_of
from dataplane.engines.vllm.copies import CpuCopies, DeviceCopies, GroupCopies
from dataplane.engines.vllm.messages import GroupLayout
from dataplane.engines.vllm.options import options_of
from dataplane.engines.vllm.states import has_states, specs_of
from dataplane.protocol.spaces import Space

KINDS = {
    "FullAttentionSpec",
    "MLAAttentionSpec",
    "SinkFullAttentionSpec",
    "SlidingWindowSpec",
    "SlidingWindowMLASpec",
    "ChunkedLocalAttentionSpec",
    "MambaSpec",
}
"""vLLM's kinds of KV caches that have a block for each run of tokens, or recurrent state at its end. Other kinds do
not: for example, they keep a ring of the latest tokens, or windows that `slides` does not know."""


class CacheRefused(Exception):
    """Raised for KV caches that Larder cannot copy. The message says why."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What distinguishes the KV values of an engine's model from those of other models."""

    model: str
    revision: str


def copies_of(
    vllm_config: Any,
    kv_cache_config: Any,
    tensors: Mapping[str, Any],
    *,
    rank: int,
    identity: ModelIdentity,
    chunk_tokens: int,
) -> list[GroupCopies]:
    """Return the copies of each KV-cache group of one worker. Raise CacheRefused, or ValueError for wrong settings."""
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise CacheRefused(f"{name} is above 1")
    cache_config = vllm_config.cache_config
    if getattr(cache_config, "calculate_kv_scales", False) and cache_config.cache_dtype.startswith("fp8"):  # until 0.27
        raise CacheRefused("with calculate_kv_scales, each process has its own scales of KV values")
    groups = kv_cache_config.kv_cache_groups
    # Accounts of requests are of group 0, and states are not stored for each chunk.
    order = sorted(range(len(groups)), key=lambda number: has_states(groups[number].kv_cache_spec))
    states = [described for group in groups for described in _described_states(group.kv_cache_spec)]
    if states and getattr(vllm_config, "speculative_config", None) is not None:
        raise CacheRefused("it has layers with recurrent state and speculative decoding")
    copies: list[GroupCopies] = []
    for number, cache_group in enumerate(groups):
        spec = cache_group.kv_cache_spec
        for layer_spec in specs_of(spec):
            if type(layer_spec).__name__ not in KINDS:
                raise CacheRefused(f"KV-cache group {number} has the unsupported kind {type(layer_spec).__name__}")
        layers = _distinct(tensors, cache_group.layer_names)
        page_tokens = spec.block_size
        if chunk_tokens % page_tokens:
            raise ValueError(
                f"kv_connector_extra_config.larder.chunk_tokens: expected a multiple of the block size {page_tokens}"
                f" of KV-cache group {number}, got {chunk_tokens}"
            )
        is_state = has_states(spec)
        if is_state:
            layers = _states(cache_config, spec, layers)
            page_tokens = chunk_tokens
        members = list(layers.values())
        group = _tensor_group(number, members, page_tokens, chunk_tokens)
        if group.blocks != kv_cache_config.num_blocks:
            raise CacheRefused(
                f"KV-cache group {number} has tensors of {group.blocks} blocks; expected {kv_cache_config.num_blocks}"
            )
        space = Space(
            model=identity.model,
            revision=identity.revision,
            layout=_layout_name(
                group.tensors, layers, getattr(kv_cache_config, "kv_cache_layout", None), page_tokens, states
            ),
            dtype=_dtype_of(vllm_config),
            kv_group=order.index(number),
            world_size=parallel.world_size,
            rank=rank,
            block_bytes=group.chunk_bytes,
            block_tokens=chunk_tokens,
            head_size=_head_size(spec),
            tail_blocks=1 if is_state else 0,
        )
        layout = GroupLayout(space, page_tokens)
        if members[0].device.type == "cpu":
            pages = pages_of(members, tokens_per_block=page_tokens, chunk_tokens=chunk_tokens)
            copies.append(CpuCopies(pages, layout))
        else:
            copies.append(_on_cuda(group, layout, members, chunk_tokens))
    return copies


def _tensor_group(number: int, tensors: Sequence[Any], page_tokens: int, chunk_tokens: int) -> TensorGroup:
    """Return the layout of tensors that share block numbers."""
    try:
        planes = tuple(
            planes_of(tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size()) for tensor in tensors
        )
    except LayoutRefused as error:
        raise CacheRefused(f"KV-cache group {number}: {error}") from None
    blocks = min(tensor.shape[block_axis(tensor.shape)] for tensor in tensors)
    return TensorGroup(blocks, page_tokens, chunk_tokens // page_tokens, planes)


def _on_cuda(group: TensorGroup, layout: GroupLayout, tensors: Sequence[Any], chunk_tokens: int) -> DeviceCopies:
    """Return the copies of CUDA tensors."""
    import torch

    def cache_of(client: Client) -> PagedCache:
        return PagedCache.of_tensors(client, tensors, tokens_per_block=layout.page_tokens, chunk_tokens=chunk_tokens)

    def record(cache: PagedCache, event: DeviceEvent) -> None:
        cache.stream_of(torch.cuda.current_stream(tensors[0].device).cuda_stream).record(event)

    return DeviceCopies(group, layout, cache_of, record)


def _states(cache_config: Any, spec: Any, layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of a group of states without the padding of their blocks. Raise CacheRefused."""
    for layer_spec in specs_of(spec):
        if layer_spec.mamba_cache_mode != "align":
            raise CacheRefused(
                "Larder loads states only with mamba_cache_mode 'align' (--enable-prefix-caching --mamba-cache-mode "
                f"align), got {layer_spec.mamba_cache_mode!r}"
            )
    if getattr(cache_config, "use_replayssm", False):
        raise CacheRefused("with use_replayssm, a block holds inputs in place of the state")
    found = {}
    for name, tensor in layers.items():
        layer_spec = getattr(spec, "kv_cache_specs", {}).get(name, spec)
        nbytes = sum(prod(shape) * dtype.itemsize for shape, dtype in _parts_of(layer_spec))
        if tensor.element_size() != 1 or tensor.shape[-1] < nbytes:
            raise CacheRefused(f"layer {name} has states of {tensor.shape[-1]} elements; expected {nbytes} bytes")
        found[name] = tensor[..., :nbytes]
    return found


def _parts_of(spec: Any) -> list[tuple[tuple[int, ...], Any]]:
    """Return the shapes and data types of the parts of a layer's state, which follow each other in a block."""
    return list(zip(spec.shapes, spec.dtypes, strict=True))


def _described_states(spec: Any) -> list[Any]:
    """Return what the bytes of a group's states mean; empty for attention. How kernels arrange a state within these
    shapes has no name, so releases of vLLM share none."""
    return [
        (_release(), str(layer_spec.mamba_type), [(list(shape), str(dtype)) for shape, dtype in _parts_of(layer_spec)])
        for layer_spec in specs_of(spec)
        if has_states(layer_spec)
    ]


def _head_size(spec: Any) -> int:
    """Return the elements of one head of one token, if the layers of a group agree, else 0."""
    sizes = {getattr(layer_spec, "head_size", 0) for layer_spec in specs_of(spec)}
    return sizes.pop() if len(sizes) == 1 else 0


def slides(kv_cache_config: Any) -> bool:
    """Return whether the engine may free or overwrite blocks of a running request: a window has moved past them, or a
    later state replaces them."""
    specs = [spec for group in kv_cache_config.kv_cache_groups for spec in specs_of(group.kv_cache_spec)]
    return len(kv_cache_config.kv_cache_groups) > 1 or any(
        has_states(spec) or any(getattr(spec, name, None) for name in ("sliding_window", "attention_chunk_size"))
        for spec in specs
    )


def _distinct(tensors: Mapping[str, Any], layer_names: Sequence[str]) -> dict[str, Any]:
    """Return the distinct tensors of layers, by layer name: a tensor that several layers share occurs once."""
    by_address: dict[int, tuple[str, Any]] = {}
    for name in layer_names:
        tensor = tensors.get(name)
        if tensor is None:
            continue
        if not hasattr(tensor, "data_ptr"):
            raise CacheRefused(f"layer {name} has a cache of the unsupported type {type(tensor).__name__}")
        if tensor.device.type not in ("cpu", "cuda"):
            raise CacheRefused(f"layer {name} is on the device {tensor.device}; expected CPU or CUDA")
        by_address.setdefault(tensor.data_ptr(), (name, tensor))
    if not by_address:
        raise CacheRefused(f"no KV-cache tensor for {', '.join(layer_names[:3])}")
    devices = sorted({str(tensor.device) for _, tensor in by_address.values()})
    if len(devices) > 1:
        raise CacheRefused(f"the layers of a KV-cache group are on several devices: {', '.join(devices[:4])}")
    return dict(by_address.values())


def _layout_name(
    planes: Sequence[Planes], tensors: Mapping[str, Any], layout: str | None, tokens: int, states: Sequence[Any]
) -> str:
    """Return a name that two caches share if and only if their chunks are interchangeable. `states`: what the model's
    recurrent states are, which KV values depend on too; empty for a model without.

    The name depends on the names of layers, because two stages of a pipeline, or two groups of a hybrid model, may have
    equally many layers of the same shape. It also depends on the device, because vLLM's CPU kernels pack keys within a
    block in an order that depends on the CPU's instructions.
    """
    described: list[Any] = [
        (
            name,
            _device_of(tensor),
            list(tensor.shape[1:]),
            list(tensor_planes.order),
            len(tensor_planes.starts),
            tensor_planes.nbytes,
        )
        for (name, tensor), tensor_planes in zip(tensors.items(), planes, strict=True)
    ]
    described += states
    digest = sha256(msgspec.msgpack.encode(described)).hexdigest()[:16]
    return f"vllm:{layout or 'default'}:{len(tensors)}x{tokens}:{digest}"


_INSTRUCTIONS = ("_is_amx_tile_supported", "_is_avx512_supported")
"""Functions of `torch.cpu` by which vLLM chooses its CPU kernels when it starts."""


def _device_of(tensor: Any) -> str:
    """Return the type of a tensor's device, and of a CPU what vLLM chooses its kernels by."""
    if tensor.device.type != "cpu":
        return str(tensor.device.type)
    import torch

    supported = [name for name in _INSTRUCTIONS if getattr(torch.cpu, name, bool)()]
    return " ".join(["cpu", platform.machine(), *supported])


def identity_of(vllm_config: Any, named: str = "") -> ModelIdentity:
    """Return the identity of the model that an engine has loaded. `named`: the name that the operator gave it, who then
    vouches for the weights; else a fingerprint of them is in the revision. Raise WeightsUnknown."""
    config = vllm_config.model_config
    loaded = "" if named else _fingerprint(vllm_config)
    parts = [loaded or str(getattr(config, "revision", None) or ""), str(getattr(config, "quantization", None) or "")]
    changes = options_of(vllm_config, _PARTS)
    if callable(getattr(config, "hf_overrides", None)):
        if not named:
            raise weights.WeightsUnknown("hf_overrides is a function")
        changes = [(name, value) for name, value in changes if name != "hf_overrides"]
    if not loaded and getattr(config, "hf_config_path", None):
        changes.append(("hf_config_path", config.hf_config_path))
    changes += [(name, value) for name in _VARIABLES if (value := os.environ.get(name))]
    if "llama4" in str(getattr(getattr(config, "hf_text_config", None), "model_type", "")):
        generation = {**config.try_get_generation_config(), **config.override_generation_config}
        tunes = generation.get("attn_temperature_tuning", config.max_model_len > 32_768)
        changes.append(("attn_temperature_tuning", bool(tunes)))
    # With LongRoPE, vLLM rotates all keys differently if sequences may exceed the original length.
    if "longrope" in str(getattr(getattr(config, "hf_text_config", None), "rope_parameters", "")):
        changes.append(("max_model_len", config.max_model_len))
    if vllm_config.cache_config.cache_dtype != "auto":
        changes.append(("dtype", str(config.dtype)))
    draft = _draft_of(vllm_config)
    if getattr(draft, "quantization", None):
        changes.append(("draft_quantization", draft.quantization))
    parts.append(digest_of(changes))
    name = named or weights.default_name(config.model, str(getattr(config, "served_model_name", None) or ""))
    return ModelIdentity(name, revision_of(parts))


_PARTS = ("model_config", "multimodal_config", "cache_config", "mamba_config", "attention_config", "diffusion_config")
"""Parts of vLLM's configuration whose options are in the space. `lora_config` is in the identity of adapters."""
_VARIABLES = (
    "VLLM_HUMMING_ONLINE_QUANT_CONFIG",
    "VLLM_HUMMING_INPUT_QUANT_CONFIG",
    "VLLM_MARLIN_INPUT_DTYPE",
    "VLLM_MOE_ROUTING_SIMULATION_STRATEGY",
)
"""Variables of the environment by which vLLM computes other KV values of equal shape."""
_LOADED_TOO = ("text_model_id", "audio_model_id")
"""Keys of a model's configuration that name models from which vLLM takes a part of the weights (Ultravox)."""


def _draft_of(vllm_config: Any) -> Any:
    """Return the configuration of the draft model; None if there is none that has weights of its own."""
    draft = getattr(getattr(vllm_config, "speculative_config", None), "draft_model_config", None)
    target = vllm_config.model_config
    same = draft is None or all(
        (getattr(draft, name, None) or None) == (getattr(target, name, None) or None) for name in ("model", "revision")
    )
    return None if same else draft


def _fingerprint(vllm_config: Any) -> str:
    """Return the fingerprint of the weights of an engine's models. Raise WeightsUnknown."""
    target, load = vllm_config.model_config, getattr(vllm_config, "load_config", None)
    loaded = [(target, load)]
    if (draft := _draft_of(vllm_config)) is not None:
        loaded.append((draft, getattr(vllm_config.speculative_config, "draft_load_config", None) or load))
    fingerprints: list[str] = []
    for config, model_load in loaded:
        download_dir = str(getattr(model_load, "download_dir", None) or "")
        load_format = str(getattr(model_load, "load_format", "auto"))
        hf_config = getattr(config, "hf_config", None)
        config_elsewhere = str(getattr(config, "hf_config_path", None) or "")
        fingerprints.append(
            weights.fingerprint(
                str(getattr(config, "model_weights", None) or config.model),
                load_format=load_format,
                revision=str(getattr(config, "revision", None) or ""),
                commit="" if config_elsewhere else str(getattr(hf_config, "_commit_hash", None) or ""),
                download_dir=download_dir,
                config=config_elsewhere,
                code_revision=str(getattr(config, "code_revision", None) or ""),
                release=_release() if load_format == weights.DUMMY else "",
            )
        )
        parts = [str(part) for name in _LOADED_TOO if (part := getattr(hf_config, name, None))]
        fingerprints += [
            weights.fingerprint(part, load_format=load_format, download_dir=download_dir) for part in parts
        ]
    chosen = digest_of(weights.choices(getattr(load, "model_loader_extra_config", None)))
    return weights.together([*fingerprints, chosen] if chosen else fingerprints)


def _release() -> str:
    """Return vLLM's release; empty where vLLM is not installed."""
    try:
        from vllm import __version__
    except ImportError:
        return ""
    return str(__version__)


def _dtype_of(vllm_config: Any) -> str:
    """Return the data type of the KV cache."""
    dtype = vllm_config.cache_config.cache_dtype
    return str(vllm_config.model_config.dtype if dtype == "auto" else dtype).removeprefix("torch.")
