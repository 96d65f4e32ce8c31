"""What distinguishes the KV bytes of two SGLang engines of one model, by SGLang's arguments.

All arguments count that are not at their defaults, except those listed here: by their namespace, which is SGLang's own
classification, or by their name. Choices between implementations of one computation (backends, kernels, communication,
graphs) do not count.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Any

import msgspec

from dataplane.engines import weights
from dataplane.engines.identity import is_listed, listed

HARMLESS_NAMESPACES = (
    "device",
    "disagg",
    "exec.comm",
    "exec.graph",
    "exec.offload",
    "exec.overlap",
    "memory",
    "observability",
    "parallel",
    "schedule",
    "serving",
    "spec",
)
"""Namespaces of arguments that say where and when something is computed, not what. Parallel sizes are in the space, and
a draft model counts if pages have layers of it."""
COUNTED = ("weight_version", "forward_hooks", "image_processor_backend")
"""Arguments that count although their namespaces or names do not."""
HARMLESS = listed(
    {
        "choices between implementations of one computation": "*_backend",
        "model: where weights come from, how they are loaded, and what `identity` compares by itself": (
            "model_path revision load_format download_dir json_model_override_args quantization kv_cache_dtype "
            "dtype trust_remote_code context_length is_embedding model_impl model_checksum "
            "modelopt_checkpoint_save_path modelopt_export_path startup_weight_load_mode custom_weight_loader "
            "weight_loader_* weight_cache_* remote_instance_weight_loader_* "
            "checkpoint_engine_wait_weights_before_ready engine_info_bootstrap_port modelexpress_config "
            "delete_ckpt_after_loading"
        ),
        "mm: caches, places, and rights": (
            "enable_multimodal enable_broadcast_mm_inputs_process enable_prefix_mm_cache enable_mm_global_cache "
            "mm_enable_dp_encoder mm_processor_worker_num mm_io_worker_num mm_preprocess_cache_size_mb "
            "mm_feature_transport allowed_media_domains media_url_max_file_size_mb limit_mm_data_per_request"
        ),
        "lora: `lora_paths` is compared by contents": (
            "enable_lora enable_lora_overlap_loading lora_paths lora_eviction_policy lora_use_virtual_experts "
            "lora_strict_loading lora_drain_wait_threshold max_lora_rank max_lora_chunk_size max_loaded_loras "
            "max_loras_per_batch"
        ),
        "exec.features: output, and memory of weights": (
            "enable_fp32_lm_head enable_memory_saver enable_weights_cpu_backup enable_draft_weights_cpu_backup "
            "enable_custom_logit_processor enable_return_* return_* aux_hidden_state_capture "
            "sampling_mask_max_tokens disable_outlines_disk_cache enable_watermark watermark_*"
        ),
        "exec.kernel: implementations": (
            "enable_lean_attention enable_fused_qk_norm_rope enable_amd_monokernel enable_nvidia_megakernel "
            "enable_dsa_fused_indexer dsa_triton_union triton_attention_* flashinfer_mla_disable_ragged "
            "disable_flashinfer_autotune flashinfer_autotune_skip_ops"
        ),
        "exec.moe: places of experts": (
            "enable_fused_moe_sum_all_reduce disable_flashinfer_cutlass_moe_fp4_allgather "
            "disable_shared_experts_fusion deepep_mode deepep_v2_mode deepep_config fuseep_mode "
            "ep_num_redundant_experts ep_dispatch_algorithm ep_join_mode init_expert_location enable_eplb eplb_* "
            "expert_distribution_recorder_* expert_balancedness_report_mode enable_elastic_expert_backup "
            "elastic_ep_scale_timeout mooncake_ib_device enable_waterfill enable_paged_experts "
            "paged_experts_num_resident kt_cpuinfer kt_threadpool_count"
        ),
        "exec.dllm: order of work": "dllm_fdfo",
    }
)
"""Arguments of the other namespaces that do not count, by why they do not."""
_DRAFT = ("algorithm", "draft_model_quantization", "draft_kv_cache_dtype")
"""Arguments that change the KV values of a draft model, after `speculative_`."""
_FILES = ("_path", "_file", "_config")
"""Ends of the names of arguments that may name files."""
_VARIABLES = (
    "SGLANG_HUMMING_ONLINE_QUANT_CONFIG",
    "SGLANG_HUMMING_INPUT_QUANT_CONFIG",
    "SGLANG_FP4_IGNORED_LAYERS",
    "SGLANG_SKIP_SOFTMAX_PREFILL_THRESHOLD_SCALE_FACTOR",
    "SGLANG_SIMULATE_UNIFORM_EXPERTS",
    "SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS",
)
"""Variables of the environment by which SGLang computes other KV values of equal shape."""
_EMPTY: tuple[object, ...] = (None, "", "{}", {}, [])
_NO_FILES = ("none", "dummy")
"""Names that SGLang gives a model without files."""


def identity(name: str, *, vouched: bool, has_draft_layers: bool) -> tuple[str, list[str]]:
    """Return the default name of the model, and what distinguishes its KV bytes from those of models of the same name.

    `name`: the name in SGLang's configuration of storage. `vouched`: whether the operator has named the weights in
    Larder's settings; else fingerprints of them are part of the result. `has_draft_layers`: whether pages have layers
    of a draft model. Raise WeightsUnknown, and ValueError for an adapter or a file with settings that cannot be read.
    """
    from sglang.srt.runtime_context import get_server_args

    server = get_server_args()
    path, revision = _resolved(server, "model_path") or "none", _text(server, "revision")
    loaded = "" if vouched else _fingerprint(server, path, revision, has_draft_layers=has_draft_layers)
    if not vouched and name.startswith(path):  # SGLang appends a tag for some host pools
        name = weights.default_name(path) + name.removeprefix(path)
    rare = [*_counted(server), *_adapters(server)]
    kv_cache_dtype, overrides = _text(server, "kv_cache_dtype"), _text(server, "json_model_override_args")
    if kv_cache_dtype not in ("", "auto"):  # else the type of the pages says it
        rare.append(("dtype", getattr(server, "dtype", None)))
    if has_draft_layers:
        rare += [(part, _resolved(server, f"speculative_{part}")) for part in _DRAFT]
    return name, [
        loaded or revision,
        _text(server, "quantization"),
        kv_cache_dtype,
        _text(server, "device"),
        "" if overrides in ("", "{}") else sha256(overrides.encode()).hexdigest()[:16],
        sha256(repr(rare).encode()).hexdigest()[:16] if rare else "",
    ]


def _text(server: Any, argument: str) -> str:
    return str(getattr(server, argument, None) or "")


def _resolved(server: Any, argument: str) -> str:
    """Return an argument as SGLang uses it. `server` has what the operator gave."""
    from sglang.srt.arg_groups.overrides import resolution_result

    return str(resolution_result(server, argument) or "")


def _fingerprint(server: Any, path: str, revision: str, *, has_draft_layers: bool) -> str:
    """Return the fingerprint of the weights of the models whose layers pages have. Raise WeightsUnknown."""
    if path.lower() in _NO_FILES:
        return ""
    if getattr(server, "checkpoint_engine_wait_weights_before_ready", False):
        raise weights.WeightsUnknown("a checkpoint engine sends the weights")
    if getattr(server, "weight_cache_mode", "off") == "client":
        raise weights.WeightsUnknown("a weight cache daemon has loaded the weights")
    load_format = _text(server, "load_format") or "auto"
    models = [(path, load_format, revision)]
    draft = _resolved(server, "speculative_draft_model_path") if has_draft_layers else ""
    if draft not in ("", path):
        draft_format = _resolved(server, "speculative_draft_load_format") or load_format
        models.append((draft, draft_format, _resolved(server, "speculative_draft_model_revision")))
    return weights.together(
        [
            weights.fingerprint(
                model,
                load_format=model_format,
                revision=model_revision,
                download_dir=_text(server, "download_dir"),
                release=_release() if model_format == weights.DUMMY else "",
            )
            for model, model_format, model_revision in models
        ]
    )


def _counted(server: Any) -> list[tuple[str, object]]:
    """Return the arguments that count and differ from their defaults. Of files and folders, the contents count. Raise
    ValueError."""
    from sglang.srt.arg_groups.arg_utils import namespace_of, record_fields

    record = type(server)
    defaults, namespaces = record(model_path=""), namespace_of(record)
    has_adapters = bool(getattr(server, "lora_paths", None))
    found: list[tuple[str, object]] = []
    for name in sorted(field.name for field in record_fields(record)):
        namespace, value = namespaces.get(name, ""), getattr(server, name)
        if value in _EMPTY or value == getattr(defaults, name) or not counts(name, namespace):
            continue
        if namespace == "lora" and not has_adapters:  # no pages of other adapters are shared
            continue
        if isinstance(value, (set, frozenset)):
            value = sorted(value)
        if name == "model_loader_extra_config":
            value = _loader_choices(value)
            if not value:
                continue
        if isinstance(value, str) and name.endswith(_FILES) and os.path.exists(value):
            try:
                value = weights.contents(value)
            except weights.WeightsUnknown as error:
                raise ValueError(f"--{name.replace('_', '-')}: {error}") from None
        found.append((name, value))
    return found + [(name, value) for name in _VARIABLES if (value := os.environ.get(name))]


def _loader_choices(value: Any) -> list[tuple[str, Any]]:
    try:
        return weights.choices(msgspec.json.decode(value) if isinstance(value, str) else value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"--model-loader-extra-config: {error}") from None


def counts(name: str, namespace: str) -> bool:
    """Return whether an argument may change KV values."""
    if name in COUNTED:
        return True
    return namespace not in HARMLESS_NAMESPACES and not is_listed(name, HARMLESS)


def _adapters(server: Any) -> list[tuple[str, object]]:
    """Return the names and fingerprints of the adapters that SGLang was started with. The hash of a page has only their
    names and paths. (An adapter that is loaded later has an id of its own, and shares nothing.) Raise ValueError."""
    from sglang.srt.arg_groups.overrides import resolution_result

    adapters = resolution_result(server, "lora_paths") if resolution_result(server, "enable_lora") else None
    found: list[tuple[str, object]] = []
    for adapter in adapters or ():
        try:
            fingerprint = weights.adapter(
                adapter.lora_path,
                load_format=_text(server, "load_format") or "auto",
                download_dir=_text(server, "download_dir"),
            )
        except weights.WeightsUnknown as error:
            raise ValueError(f"the adapter {adapter.lora_name} of --lora-paths: {error}") from None
        found.append((adapter.lora_name, fingerprint))
    return sorted(found)


def _release() -> str:
    from sglang.version import __version__

    return str(__version__)
