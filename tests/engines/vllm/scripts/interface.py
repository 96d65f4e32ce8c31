"""Print as JSON the methods of vLLM's base class, the fields of its requests, the results of Larder's connector if both
of its sides fail, the keys of requests with images, and the options that KV values depend on."""

import inspect
import json
from types import SimpleNamespace
from typing import Any

import vllm
from vllm.config import AttentionConfig, CacheConfig, LoRAConfig
from vllm.config.multimodal import MultiModalConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.multimodal.processing.inputs import ProcessorInputs
from vllm.pooling_params import PoolingParams
from vllm.renderers.base import BaseRenderer
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request

from dataplane.engines.vllm.connector import LarderConnector, LarderMetadata, _hashes_media, _holds_blocks
from dataplane.engines.vllm.messages import StepReport
from dataplane.engines.vllm.options import options_of
from dataplane.engines.vllm.request_keys import RequestKeys, Unkeyed
from dataplane.engines.vllm.worker import Results
from tests.engines.vllm.scripts.fake_config import CACHES, CONFIG, HYBRID


class Failing:
    """A side of the connector whose methods all raise an error."""

    def __getattr__(self, name: str) -> None:
        raise RuntimeError(f"{name} fails")


def answers(connector: LarderConnector, calls: dict[str, tuple[object, ...]]) -> dict[str, object]:
    found = {}
    for name, arguments in calls.items():
        answer = getattr(connector, name)(*arguments)
        found[name] = type(answer).__name__ if isinstance(answer, LarderMetadata) else answer
    return found


request, output = SimpleNamespace(request_id="r"), SimpleNamespace(kv_connector_block_state=None)
scheduler = LarderConnector(CONFIG, KVConnectorRole.SCHEDULER, CACHES)
worker = LarderConnector(CONFIG, KVConnectorRole.WORKER, CACHES)
failing: Any = Failing()
scheduler._scheduler = worker._worker = failing
worker.bind_connector_metadata(LarderMetadata())
found = answers(
    scheduler,
    {
        "set_xfer_handshake_metadata_pp_aware": ({(0, 0): object()},),
        "get_num_new_matched_tokens": (request, 0),
        "build_connector_meta": (output,),
        "update_connector_output": (output,),
        "request_finished_all_groups": (request, ([],)),
        "request_finished": (request, []),
        "reset_cache": (),
        "has_pending_push_work": (),
        "get_kv_connector_stats": (),
    },
)
found |= answers(
    worker,
    {
        "start_load_kv": (None,),
        "wait_for_save": (),
        "build_connector_worker_meta": (),
        "handle_preemptions": (LarderMetadata(),),
    },
)


class Ending:
    """A worker's side whose loads end when it is closed."""

    def __init__(self) -> None:
        self.loads: set[str] = set()

    def close(self) -> None:
        self.loads = {"r"}

    def results(self) -> Results:
        loads, self.loads = self.loads, set()
        self.ended = StepReport(loads_failed=dict.fromkeys(loads, 0))
        return Results(received=loads, failed=loads)

    def take_report(self) -> StepReport | None:
        return self.ended or None


asleep = LarderConnector(CONFIG, KVConnectorRole.WORKER, CACHES)
before: Any = Ending()
asleep._worker = before
asleep.unregister_kv_caches()
after: Any = Ending()
asleep._worker = after  # restored without a step in between
slept = []
for _ in range(2):
    if hasattr(KVConnectorBase_V1, "get_transfer_results"):
        results = asleep.get_transfer_results(set())
        slept.append([sorted(results.finished_recving), sorted(results.failed_recving)])
    else:
        received = sorted(asleep.get_finished(set())[1] or ())
        slept.append([received, received])
    meta = asleep.build_connector_worker_meta()
    slept[-1].append([] if meta is None else sorted(meta.report.loads_failed))


def chunk_tokens(role: KVConnectorRole, block_size: int) -> int:
    """Return the tokens of a chunk of a hybrid model on one side of the connector."""
    config = SimpleNamespace(**{**vars(CONFIG), "cache_config": SimpleNamespace(block_size=block_size)})
    return LarderConnector(config, role, HYBRID)._settings.chunk_tokens


class Items(dict[str, Any]):
    """Images as vLLM's processor passes them on."""

    def get_all_counts(self) -> dict[str, int]:
        return {name: len(each) for name, each in self.items()}


class Images(list[bytes]):
    def get_all_items_for_hash(self) -> list[bytes]:
        return self


def key_of_image(content: bytes, name: str | None, options: dict[str, int], cached: bool) -> str:
    """Return the key of a prompt with an image that vLLM's renderer and processor identify in a new process; empty if
    the prompt has none. `name`: as in `multi_modal_uuids`. `cached`: whether vLLM has a cache of prefixes."""
    media = MultiModalConfig(mm_processor_cache_gb=0)
    engine = SimpleNamespace(
        model_config=SimpleNamespace(multimodal_config=media),
        cache_config=SimpleNamespace(enable_prefix_caching=cached),
    )
    renderer: Any = SimpleNamespace(config=engine, model_config=engine.model_config, _validate_mm_uuids=lambda *_: None)
    items: Any = Items(image=Images([content]))
    names = BaseRenderer._process_mm_uuids(renderer, {}, items, {"image": [name]} if name else {}, "renderer0-mm-1")
    inputs = ProcessorInputs([], items, names, options)
    ((identifier,),) = inputs.get_mm_hashes("model", "blake3").values()
    feature = MultiModalFeatureSpec(None, "image", identifier, PlaceholderRange(offset=4, length=8))
    params = SamplingParams(max_tokens=1)
    request = Request("r", [7] * 16, params, None, mm_features=[feature])
    try:
        return RequestKeys(request, 16, hashes_media=_hashes_media(engine)).extend(request, 16)[0].hex()
    except Unkeyed as error:
        return "" if error.reason == "media" else f"{error!r}"


def options(**given: Any) -> list[str]:
    """Return the names of the options that KV values depend on, of vLLM's defaults with those that are given."""
    parts = {"cache": CacheConfig, "attention": AttentionConfig, "multimodal": MultiModalConfig, "lora": LoRAConfig}
    made = {f"{name}_config": part(**given.get(name, {})) for name, part in parts.items()}
    return [name for name, _ in options_of(SimpleNamespace(model_config=None, **made), made)]


IMAGES = [
    (name, options, cached) for name in (None, "cat") for options in ({}, {"crop": 1}) for cached in (True, False)
]
print(
    json.dumps(
        {
            "release": vllm.__version__,
            "methods": sorted(name for name in vars(KVConnectorBase_V1) if not name.startswith("_")),
            "answers": found,
            "images": [
                [*case, *(key_of_image(content, *case) for content in (b"cat", b"cat", b"dog"))] for case in IMAGES
            ],
            "fields": {
                "LoRARequest": [*LoRARequest.__struct_fields__],
                "PoolingParams": [*PoolingParams.__struct_fields__],
                "Request": [*inspect.signature(Request).parameters],
            },
            "slept": slept,
            "chunks": [chunk_tokens(role, size) for role in KVConnectorRole for size in (16, 32)],
            "holds": [
                _holds_blocks(
                    SimpleNamespace(use_v2_model_runner=second),
                    SimpleNamespace(needs_kv_cache_zeroing=zeroes, kv_cache_groups=[]),
                )
                for second in (False, True)
                for zeroes in (False, True)
            ],
            "options": [
                options(),
                options(cache={"gpu_memory_utilization": 0.5}, lora={"max_loras": 2}),
                options(multimodal={"video_pruning_method": "vidcom2"}, lora={"target_modules": ["o_proj"]}),
            ],
            "watched": sorted(name for name, call in vars(EngineCore).items() if hasattr(call, "reports_to_larder")),
            "policy": CONFIG.kv_transfer_config.kv_load_failure_policy,
        }
    )
)
