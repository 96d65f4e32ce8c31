"""Print as JSON the methods of vLLM's base class, and the results of Larder's connector if both of its sides fail."""

import json
from types import SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole

from dataplane.engines.vllm.connector import LarderConnector, LarderHandshake, LarderMetadata
from dataplane.engines.vllm.worker import Results

spec = SimpleNamespace(block_size=16)
config = SimpleNamespace(
    kv_transfer_config=SimpleNamespace(
        kv_connector_extra_config={"larder.socket": "/nowhere"},
        engine_id="e",
        kv_load_failure_policy="fail",
        is_kv_consumer=True,
        is_kv_producer=True,
    ),
    cache_config=SimpleNamespace(block_size=16),
    parallel_config=SimpleNamespace(rank=0),
)
caches = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=["a"])])


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
scheduler = LarderConnector(config, KVConnectorRole.SCHEDULER, caches)
worker = LarderConnector(config, KVConnectorRole.WORKER, caches)
failing: Any = Failing()
scheduler._scheduler = worker._worker = failing
worker.bind_connector_metadata(LarderMetadata())
found = answers(
    scheduler,
    {
        "set_xfer_handshake_metadata_pp_aware": ({(0, 0): LarderHandshake([])},),
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
        return Results(received=loads, failed=loads)


asleep = LarderConnector(config, KVConnectorRole.WORKER, caches)
before: Any = Ending()
asleep._worker = before
asleep.unregister_kv_caches()
after: Any = Ending()
asleep._worker = after  # restored without a step in between
slept = []
for _ in range(2):
    results = asleep.get_transfer_results(set())
    slept.append([sorted(results.finished_recving), sorted(results.failed_recving)])
print(
    json.dumps(
        {
            "methods": sorted(name for name in vars(KVConnectorBase_V1) if not name.startswith("_")),
            "answers": found,
            "slept": slept,
            "policy": config.kv_transfer_config.kv_load_failure_policy,
        }
    )
)
