"""Print as JSON what vLLM's MultiConnector makes of the answers of Larder's connector and of another one, in both
orders: a value for each method. The other connector is as strict as NixlConnector about handshakes."""

import json
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector, MultiKVConnectorMetadata
from vllm.plugins import load_general_plugins
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import KVConnectorOutput

from dataplane.engines.vllm.connector import LarderConnector, LarderMetadata
from dataplane.engines.vllm.messages import GroupLayout, StepPlan
from dataplane.engines.vllm.worker import Results
from dataplane.protocol.spaces import Space
from tests.engines.vllm.scripts.fake_config import CACHES, CONFIG


@dataclass
class OtherHandshake(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    rank: int = 0


@dataclass
class OtherMetadata(KVConnectorMetadata):  # type: ignore[misc]
    pass


@dataclass
class OtherWorkerMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc]
    workers: int = 1

    def aggregate(self, other: Any) -> Any:
        return OtherWorkerMetadata(self.workers + other.workers)


class OtherConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """A connector that has an answer to everything."""

    def __init__(self) -> None:
        self.heard: dict[str, Any] = {}
        self.delivers = self.resets = True
        self.bound: Any = None

    requires_kv_delivery = property(lambda self: self.delivers)

    def get_handshake_metadata(self) -> Any:
        return OtherHandshake()

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Any) -> None:
        if not all(isinstance(each, OtherHandshake) for each in metadata.values()):
            raise ValueError("expected the metadata of this connector")
        self.heard["handshake"] = len(metadata)

    set_xfer_handshake_metadata = set_xfer_handshake_metadata_pp_aware

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        self.bound = type(connector_metadata).__name__

    def clear_connector_metadata(self) -> None:
        self.bound = None

    def get_transfer_results(self, finished_req_ids: Any) -> Any:
        return KVConnectorTransferResults(finished_sending={"r", "o"}, finished_recving={"p"}, failed_recving={"p"})

    def get_block_ids_with_load_errors(self) -> set[int]:
        return {7}

    def get_finished_count(self) -> int:
        return 1

    def build_connector_worker_meta(self) -> Any:
        return OtherWorkerMetadata()

    def update_connector_output(self, connector_output: Any) -> None:
        self.heard["report"] = connector_output.kv_connector_worker_meta.workers

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        return 32, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.heard["alloc"] = num_external_tokens

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return OtherMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        return True, {"do_remote_prefill": True}

    def request_finished(self, request: Any, block_ids: Any) -> Any:
        return self.request_finished_all_groups(request, block_ids)

    def take_events(self) -> Any:
        return ["event"]

    def has_pending_block_frees(self) -> bool:
        return True

    def reset_cache(self) -> bool:
        return self.resets

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...


class Worker:
    """Larder's worker's side, which has ended a load and a save."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    def results(self) -> Results:
        return Results(received={"l"}, sent={"r"}, bad_blocks={3})


def multi(role: KVConnectorRole, *, first: bool) -> tuple[MultiConnector, LarderConnector, OtherConnector]:
    """Return a MultiConnector with Larder's connector, first or last, and the other one."""
    made, larder, other = object.__new__(MultiConnector), LarderConnector(CONFIG, role, CACHES), OtherConnector()
    made._connectors = [larder, other] if first else [other, larder]
    made._all_support_hma = True
    made._requests_to_connector, made._extra_async_saves = {}, {}
    made._connector_metadata = None
    return made, larder, other


def meta(larder: Any, *, first: bool, saves: dict[str, int] | None = None) -> Any:
    return MultiKVConnectorMetadata((larder, OtherMetadata()) if first else (OtherMetadata(), larder), saves)


def a_step(first: bool) -> dict[str, Any]:
    """Run what vLLM does at the start and in a first step with two workers, up to the scheduler."""
    found: dict[str, Any] = {}
    scheduler, larder, other = multi(KVConnectorRole.SCHEDULER, first=first)
    workers = [multi(KVConnectorRole.WORKER, first=first) for _ in range(2)]
    handshakes = [worker.get_handshake_metadata() for worker, _, _ in workers]
    found["get_handshake_metadata"] = [type(each).__name__ for each in handshakes]
    scheduler.set_xfer_handshake_metadata_pp_aware({(at, 0): each for at, each in enumerate(handshakes)})
    scheduler.set_xfer_handshake_metadata(dict(enumerate(handshakes)))
    found["set_xfer_handshake_metadata"] = other.heard.pop("handshake")
    side = larder._scheduler
    assert side is not None
    request: Any = SimpleNamespace(
        request_id="r", kv_transfer_params={"do_remote_prefill": True, "remote_block_ids": [[1]]}, num_tokens=40,
        lora_request=None, mm_features=[], cache_salt=None, prompt_embeds=None, pooling_params=None,
        all_token_ids=list(range(40)), num_computed_tokens=0, num_prompt_tokens=40, prompt_is_token_ids=None,
    )  # fmt: skip
    found["get_num_new_matched_tokens"] = [scheduler.get_num_new_matched_tokens(request, 0)]
    plan = meta(LarderMetadata(StepPlan(asks_layouts=True)), first=first, saves={"r": 1})
    reports = []
    for rank, (worker, own, _) in enumerate(workers):
        own._worker = Worker()  # type: ignore[assignment]
        own._groups = [GroupLayout(Space("m", block_bytes=64, block_tokens=256, rank=rank, world_size=2), 16)]
        worker.handle_preemptions(plan)
        worker.bind_connector_metadata(plan)
        worker.start_load_kv(None)
        worker.wait_for_save()
        results = worker.get_transfer_results(set())
        found["get_transfer_results"] = [
            sorted(each) for each in (results.finished_sending, results.finished_recving, results.failed_recving)
        ]
        found["get_block_ids_with_load_errors"] = sorted(worker.get_block_ids_with_load_errors())
        reports.append(worker.build_connector_worker_meta())
        worker.clear_connector_metadata()
        found["clear_connector_metadata"] = [own._connector_metadata, worker._connector_metadata]
        found["get_mem_pool_context"] = worker.get_mem_pool_context()
        found["get_finished_count"] = worker.get_finished_count()
    output = KVConnectorOutput(finished_recving={"p"}, failed_recving={"p"}, invalid_block_ids={7})
    output.kv_connector_worker_meta = reports[0].aggregate(reports[1])
    scheduler.update_connector_output(output)
    found["update_connector_output"] = [side._workers, other.heard.pop("report")]
    found["get_num_new_matched_tokens"].append(scheduler.get_num_new_matched_tokens(request, 0))
    blocks: Any = SimpleNamespace(get_block_ids=lambda: ([1, 2, 3],))
    scheduler.update_state_after_alloc(request, blocks, 32)
    found["update_state_after_alloc"] = [side._tracked["r"].allocations, other.heard.pop("alloc")]
    found["get_external_cache_hit_sources"] = list(
        scheduler._connectors[0 if first else 1].get_external_cache_hit_sources(request, 32).values()
    )
    tracked = side._tracked["r"]
    assert tracked.outcome is not None
    tracked.saves_open, tracked.outcome.loaded_tokens = 2, {"host": 32}
    found["request_finished"] = [*scheduler.request_finished_all_groups(request, ([],)), scheduler._extra_async_saves]
    found["take_events"] = list(scheduler.take_events())
    found["has_pending_block_frees"] = scheduler.has_pending_block_frees()
    found["has_pending_push_work"] = scheduler.has_pending_push_work()
    found["requires_kv_delivery"] = [scheduler.requires_kv_delivery]
    other.delivers = False
    found["requires_kv_delivery"].append(scheduler.requires_kv_delivery)
    found["reset_cache"] = [scheduler.reset_cache()]
    other.resets = False
    found["reset_cache"].append(scheduler.reset_cache())
    found["supports_divergent_local_hybrid_hits"] = scheduler.supports_divergent_local_hybrid_hits
    found["errors"] = [larder.errors.take_count(), *(own.errors.take_count() for _, own, _ in workers)]
    scheduler.shutdown()
    return found


def second() -> str:
    """Return the error of a second child of Larder's in one MultiConnector; and check that other engines are free to
    have one, as is this engine once the first is shut down."""
    load_general_plugins()
    caches = copy(CONFIG)
    caches.cache_config = copy(CONFIG.cache_config)
    first = LarderConnector(CONFIG, KVConnectorRole.SCHEDULER, CACHES)
    LarderConnector(caches, KVConnectorRole.SCHEDULER, CACHES).shutdown()
    LarderConnector(CONFIG, KVConnectorRole.WORKER, CACHES)
    try:
        LarderConnector(copy(CONFIG), KVConnectorRole.SCHEDULER, CACHES)
    except ValueError as error:
        first.shutdown()
        LarderConnector(copy(CONFIG), KVConnectorRole.SCHEDULER, CACHES).shutdown()
        return str(error)
    return ""


def nested() -> list[str]:
    """Return the adapters that are reported to Larder's connector in a MultiConnector inside a MultiConnector."""
    outer, inner = object.__new__(MultiConnector), object.__new__(MultiConnector)
    larder = LarderConnector(CONFIG, KVConnectorRole.SCHEDULER, CACHES)
    outer._connectors, inner._connectors = [OtherConnector(), inner], [OtherConnector(), larder]
    heard: list[str] = []
    larder.adapter_loaded = lambda lora, before: heard.append(lora.lora_name)  # type: ignore[method-assign]
    core: Any = SimpleNamespace(
        scheduler=SimpleNamespace(get_kv_connector=lambda: outer),
        model_executor=SimpleNamespace(add_lora=lambda lora: True),
    )
    assert EngineCore.add_lora(core, SimpleNamespace(lora_name="a", lora_path="/nowhere"))
    larder.shutdown()
    return heard


def statistics() -> dict[str, Any]:
    """Carry statistics from the engine to the API server, which knows connectors by name alone."""
    load_general_plugins()
    load_general_plugins()
    stats = MultiConnector.build_kv_connector_stats({"LarderConnector": {"lookups": 2.0}})
    more = MultiConnector.build_kv_connector_stats({"LarderConnector": {"lookups": 1.0}})
    assert stats is not None
    assert more is not None
    kinds: Any = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
    metrics = LarderConnector.build_prom_metrics(CONFIG, kinds, ["engine"], {0: ["0"]})
    metrics.observe(stats.to_dict()["LarderConnector"])
    return {
        "class": KVConnectorFactory.get_connector_class_by_name("LarderConnector") is LarderConnector,
        "reduced": stats.aggregate(more).reduce(),
        "metric": metrics._counters["lookups"].labels("0")._value.get(),
    }


print(
    json.dumps(
        {
            "methods": sorted(name for name in vars(MultiConnector) if not name.startswith("_")),
            "orders": [a_step(first) for first in (True, False)],
            "statistics": statistics(),
            "second": second(),
            "nested": nested(),
        }
    )
)
