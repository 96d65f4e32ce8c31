"""Which options of vLLM KV values depend on: all that are not at their defaults, except those listed here."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import MISSING, Field, fields
from typing import Any

from dataplane.engines import weights
from dataplane.engines.identity import is_listed, listed

HARMLESS = listed(
    {
        "in the space by another way: by names, the fingerprint of the weights, data types and layouts": (
            "model model_weights served_model_name revision hf_config_path quantization dtype cache_dtype block_size "
            "max_model_len sliding_window multimodal_config"
        ),
        "text before and after the model": (
            "tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init runner convert seed "
            "spec_target_max_model_len max_logprobs logprobs_mode use_fp64_gumbel logits_processors generation_config "
            "override_generation_config return_sampling_mask enable_return_routed_experts enable_prompt_embeds "
            "io_processor_plugin renderer_num_workers pooler_config interleave_mm_strings"
        ),
        "rights, and checks": (
            "hf_token allowed_local_media_path allowed_media_domains allow_deprecated_quantization limit_per_prompt "
            "enable_mm_embeds allow_missing_mm_embeddings"
        ),
        "kernels, and how work is shared out": (
            "enforce_eager disable_cascade_attn enable_trace_replay enable_nccl_comm_suspend mm_encoder_tp_mode "
            "mm_device_do_normalize mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin "
            "mm_encoder_attn_backend backend backend_per_kind minimax_m3_msa_decode_backend mla_prefill_backend "
            "trtllm_ragged_backend flash_attn_version flash_attn_max_num_splits_for_cuda_graph "
            "tq_max_kv_splits_for_cuda_graph use_prefill_decode_attention use_trtllm_attention sparse_mla_force_mqa "
            "sparse_mla_prefill_workspace_factor flex_attn_block_m flex_attn_block_n flex_attn_q_block_size "
            "flex_attn_kv_block_size tokenspeed_mla_min_split_kv indexer_tp_shard_min_rows minimax_m3_indexer_cp "
            "hisparse_config"
        ),
        "memory, and vLLM's own caches": (
            "enable_sleep_mode sleep_mode_backend sleep_preserve_parameter_names sleep_mode_offload_cudagraph "
            "enable_cumem_allocator gpu_memory_utilization num_gpu_blocks_override kv_cache_memory_bytes "
            "kv_offloading_size kv_offloading_backend enable_prefix_caching prefix_caching_hash_algo "
            "prefix_cache_retention_interval prefix_match_unit is_attention_free mm_processor_cache_gb "
            "mm_processor_cache_type mm_hasher_algorithm mm_shm_cache_max_object_size_mb mm_tensor_ipc "
            "mm_ipc_gpu_memory_gb skip_mm_profiling"
        ),
        "in the layouts of models with recurrent state, which refuse some": (
            "mamba_page_size_padded skip_page_size_padded mamba_block_size mamba_cache_dtype mamba_ssm_cache_dtype "
            "mamba_cache_mode enable_mamba_fine_grained_prefix_cache enable_mamba_shared_prefix_checkpoint "
            "replayssm_buffer_len use_replayssm ssu_algorithm"
        ),
        "room for adapters": (
            "max_lora_rank max_loras max_cpu_loras fully_sharded_loras specialize_active_lora max_lora_cls_labels "
            "default_mm_loras"
        ),
    }
)
"""Options that change no KV value of equal shape, beyond what other kernels round differently, by why they do not."""


def options_of(vllm_config: Any, parts: Collection[str]) -> list[tuple[str, Any]]:
    """Return the names and values of the options in these parts of vLLM's configuration that KV values depend on; of
    files, the contents. A part is an attribute of the configuration, or of its `model_config`; one that is missing or
    None has no options. Raise WeightsUnknown."""
    found = []
    for name in parts:
        part = getattr(vllm_config, name, None) or getattr(vllm_config.model_config, name, None)
        for option in fields(part) if part is not None else ():
            if option.init and not is_listed(option.name, HARMLESS):  # vLLM derives those without `init`
                value = getattr(part, option.name)
                if value != _default(option):
                    is_file = option.name.endswith("_path") and os.path.isfile(str(value))
                    found.append((option.name, weights.contents(value) if is_file else value))
    return found


def _default(option: Field[Any]) -> object:
    if option.default_factory is not MISSING:
        return option.default_factory()
    default: Any = option.default
    return default.get_default(call_default_factory=True) if hasattr(default, "get_default") else default  # pydantic's
