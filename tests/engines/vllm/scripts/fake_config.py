"""The attributes of vLLM's configuration that Larder's connector reads, on a device: one KV-cache group, or two."""

from types import SimpleNamespace
from typing import Any

CONFIG: Any = SimpleNamespace(
    kv_transfer_config=SimpleNamespace(
        kv_connector_extra_config={"larder.socket": "/nowhere"},
        engine_id="e",
        kv_load_failure_policy="fail",
        is_kv_consumer=True,
        is_kv_producer=True,
        kv_role="kv_both",
    ),
    cache_config=SimpleNamespace(block_size=16),
    model_config=SimpleNamespace(multimodal_config=None, model="m", revision=None),
    parallel_config=SimpleNamespace(rank=0),
    speculative_config=None,
    device_config=SimpleNamespace(device_type="cuda"),
)
CACHES: Any = SimpleNamespace(
    kv_cache_groups=[SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=16), layer_names=["a"])]
)


class MambaSpec(SimpleNamespace):
    """Recurrent state, by vLLM's name."""


HYBRID: Any = SimpleNamespace(
    kv_cache_groups=[
        *CACHES.kv_cache_groups,
        SimpleNamespace(kv_cache_spec=MambaSpec(block_size=48), layer_names=["b"]),
    ]
)
