"""vLLM's connector interface (`KVConnectorBase_V1`, from 0.27 on) over the scheduler's and the worker's side.

vLLM creates one connector with the role SCHEDULER in the engine's core, and one with the role WORKER in each worker.
An error in a method of this class is logged and counts as a miss: it does not end the engine. Only invalid settings end
the engine, when it starts.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar
from weakref import WeakSet

from msgspec import structs
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from dataplane.devices.runtime import DeviceError
from dataplane.engines.guards import ErrorLog, guarded
from dataplane.engines.identity import digest_of
from dataplane.engines.vllm import releases
from dataplane.engines.vllm.adapters import AdapterFiles
from dataplane.engines.vllm.core_calls import watch
from dataplane.engines.vllm.layouts import CacheRefused, ModelIdentity, copies_of, identity_of, slides
from dataplane.engines.vllm.messages import GroupLayout, StepPlan, StepReport
from dataplane.engines.vllm.metrics import LarderPromMetrics, LarderStats
from dataplane.engines.vllm.options import options_of
from dataplane.engines.vllm.request_blocks import RequestBlocks
from dataplane.engines.vllm.scheduler import SchedulerSide
from dataplane.engines.vllm.settings import read_settings
from dataplane.engines.vllm.states import StateGroups, ends_of
from dataplane.engines.vllm.worker import Results, WorkerSide
from dataplane.engines.weights import WeightsUnknown

STATS_INTERVAL_S = 1.0
"""Shortest time between two reports of statistics to vLLM's front end."""

_log = logging.getLogger("larder.vllm")


@dataclass
class LarderMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """Work of a step."""

    plan: StepPlan = field(default_factory=StepPlan)


@dataclass
class LarderWorkerMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """Results of a step."""

    report: StepReport

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        self.report.add(other.report)
        return self


class LarderConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Loads prefixes from Larder into vLLM's KV cache, and stores computed prefixes in Larder."""

    _cache_hit_source = releases.HIT_SOURCES.get("host")
    _of_schedulers: ClassVar[WeakSet[LarderConnector]] = WeakSet()
    """Connectors with the role SCHEDULER in this process. MultiConnector's children do not know each other."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._states = StateGroups(kv_cache_config)
        self._settings = read_settings(transfer.kv_connector_extra_config)
        if self._states:
            self._settings = structs.replace(self._settings, chunk_tokens=self._states.block_tokens)
        self._group = f"vllm-{transfer.engine_id}"
        self._scheduler: SchedulerSide | None = None
        self._request_blocks = None if hasattr(self, "bind_kv_cache_manager") else RequestBlocks()
        self._worker: WorkerSide | None = None
        self._groups: list[GroupLayout] = []
        """KV-cache groups of this worker; none if Larder cannot copy them."""
        self._reports_layouts = False
        """Whether the scheduler's side has asked for them in this step."""
        self._kv_caches: dict[str, Any] | None = None
        self._identity: ModelIdentity | None = None
        """Of the weights that the engine started with. Their files may change later."""
        self._counts: dict[str, float] = {}
        """Counts of the connector itself since the last report."""
        self._results = Results()
        self._report: StepReport | None = None
        """Last report of a worker's side that was closed. It is sent with the next one."""
        self.errors = ErrorLog(_log)
        self._stats_at = 0.0
        if role is not KVConnectorRole.SCHEDULER:
            return
        if any(other._scheduler is not None and other._is_of(vllm_config) for other in self._of_schedulers):
            raise ValueError(
                "kv_connector_extra_config: expected one LarderConnector, got a second one in a MultiConnector; vLLM"
                " ends when two connectors return the same field of a response"
            )
        self._of_schedulers.add(self)
        from vllm.v1.engine.core import EngineCore  # which imports connectors itself

        watch(EngineCore, LarderConnector)
        if transfer.kv_load_failure_policy != "recompute":
            _log.info("requests whose load fails are recomputed (kv_load_failure_policy is now 'recompute')")
            transfer.kv_load_failure_policy = "recompute"
        self._scheduler = SchedulerSide(
            self._settings,
            group=self._group,
            engine=f"vllm {transfer.engine_id[:8]} scheduler",
            block_tokens=self._states.block_tokens,
            loads=transfer.is_kv_consumer,
            saves=transfer.is_kv_producer,
            may_load_in_steps=self._request_blocks is None and _may_load_in_steps(vllm_config, kv_cache_config),
            evict=self._evict,
            hashes_media=_hashes_media(vllm_config),
            # vLLM keeps such scales in the blocks, and sets those of all blocks at the first use of a layer.
            first_step_overwrites="per_token_head" in str(getattr(vllm_config.cache_config, "cache_dtype", "")),
            drops_block=_drops_block(vllm_config.speculative_config),
            adapter_options=digest_of(options_of(vllm_config, ["lora_config"])),
        )

    def _is_of(self, vllm_config: Any) -> bool:
        """Return whether the connector belongs to the engine of a configuration, of which children have copies."""
        return self._vllm_config.cache_config is vllm_config.cache_config

    @property
    def requires_kv_delivery(self) -> bool:
        """Return False: a dropped save only causes a later miss, so the request need not be computed again."""
        return False

    # ---- the scheduler's side

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        """Do nothing: the metadata are those of another connector, which MultiConnector hands to all. Larder's workers
        report their KV-cache groups with a step."""

    @guarded(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return how many tokens Larder has beyond those of the engine, and whether to load asynchronously, and not
        inside the step. None: the request waits, and vLLM asks again in its next step."""
        assert self._scheduler is not None
        tokens = self._scheduler.matched_tokens(request, num_computed_tokens)
        return tokens, bool(tokens) and not self._scheduler.loads_in_step(request.request_id)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan the load into the allocated blocks, and lease the blocks that it reads. After an error, the workers
        report the load as failed; otherwise the request would wait for it forever, or use blocks without values."""
        assert self._scheduler is not None
        numbers = self._states.at_chunk_ends(blocks.get_block_ids())
        try:
            self._scheduler.allocated(request, numbers, num_external_tokens)
        except Exception:  # noqa: BLE001  as in `guarded`
            self.errors.note("update_state_after_alloc")
            self._scheduler.give_up(request, numbers, num_external_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        """Return where the tokens were that a request loads, by vLLM's name of the place. Releases before 0.32 do not
        ask."""
        sources: dict[str, int] = {}
        if self._scheduler is not None:
            sources = self._scheduler.sources(request.request_id)
        if sum(sources.values()) != num_external_tokens:
            return super().get_external_cache_hit_sources(request, num_external_tokens)  # type: ignore[no-any-return]
        return {releases.HIT_SOURCES[source]: tokens for source, tokens in sources.items()}

    def _evict(self, blocks: set[int]) -> None:
        """Remove blocks from vLLM's own prefix cache."""
        if self._kv_cache_manager is not None:
            self._kv_cache_manager.evict_blocks(blocks)

    @guarded(LarderMetadata)
    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Return the work of a step for the workers."""
        assert self._scheduler is not None
        if self._request_blocks is not None:
            self._request_blocks.follow(scheduler_output)
            blocks_of = self._request_blocks.of
        else:
            ends = ends_of(scheduler_output) if self._states else {}
            blocks_of = partial(self._saved_blocks, scheduler_output.kv_connector_block_state, ends)
        return LarderMetadata(
            self._scheduler.plan(
                scheduler_output.num_scheduled_tokens, blocks_of, scheduler_output.preempted_req_ids or ()
            )
        )

    def _saved_blocks(self, state: Any, ends: dict[str, int], request: str) -> Any:
        """Return the blocks of a request from which a step may save; None if it has none. `state`: vLLM's
        `KVConnectorBlockState` of the step; None if it has none. `ends`: as `ends_of` returns them."""
        source = self._kv_cache_manager if state is None else state
        numbers = None if source is None else source.get_block_ids(request)
        if numbers is None or not self._states:
            return numbers
        offers = () if state is None else state.boundary_state_offloads.get(request, ())
        return self._states.left_by(numbers, ends.get(request), offers)

    @guarded()
    def update_connector_output(self, connector_output: Any) -> None:
        """Apply the workers' results."""
        assert self._scheduler is not None
        meta = connector_output.kv_connector_worker_meta
        report = meta.report if isinstance(meta, LarderWorkerMetadata) else None
        failed = getattr(connector_output, "failed_recving", None) or ()
        self._scheduler.stepped(report, connector_output.finished_recving or (), failed)

    @guarded(lambda: (False, None))
    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return whether the blocks must stay until they are saved, and the fields for the client's response."""
        assert self._scheduler is not None
        return self._scheduler.finished(request)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Do the same for KV caches of one group."""
        return self.request_finished_all_groups(request, (block_ids,))

    @guarded(lambda: False)
    def reset_cache(self) -> bool | None:
        """Make everything stored so far a miss for this engine."""
        return self._scheduler.reset() if self._scheduler is not None else True

    @guarded(lambda: False)
    def has_pending_push_work(self) -> bool:
        """Return whether vLLM must continue to make steps. A pause ends only when there is no work, and a sleep
        suspends the memory of the KV caches after the pause. Copies must have ended by then, also those of running
        requests."""
        return self._scheduler is not None and self._scheduler.copying()

    @guarded()
    def adapter_loaded(self, lora: Any, before: AdapterFiles | None) -> None:
        """Note that the engine added an adapter. `before`: its files before that."""
        if self._scheduler is not None:
            self._scheduler.adapter_loaded(lora, before)

    # ---- a worker's side

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Attach to the data plane with the spaces of this worker's KV caches."""
        if self._worker is not None:
            return
        self._kv_caches = kv_caches
        rank = self._vllm_config.parallel_config.rank
        try:
            holds_blocks = _holds_blocks(self._vllm_config, self._kv_cache_config)
            if not holds_blocks and not releases.NAMES_FAILED_REQUESTS:
                raise CacheRefused(
                    "its KV caches have several groups, windows or precisions; Larder serves these from vLLM 0.30 on,"
                    " which can compute a request again if a load into them fails"
                )
            self._identity = self._identity or identity_of(self._vllm_config, self._settings.model)
            copies = copies_of(
                self._vllm_config,
                self._kv_cache_config,
                kv_caches,
                rank=rank,
                identity=self._identity,
                chunk_tokens=self._settings.chunk_tokens,
            )
            self._worker = WorkerSide(
                self._settings,
                copies,
                group=self._group,
                engine=f"vllm {self._vllm_config.kv_transfer_config.engine_id[:8]} worker {rank}",
                holds_blocks=holds_blocks,
            )
            alone = get_kv_transfer_group() is self
            self._groups = [replace(group_copies.layout, alone=alone) for group_copies in copies]
        except WeightsUnknown as error:
            self._counts["unknown_weights"] = 1
            _log.error("Larder is not used: %s; or name the weights with larder.model", error)
        except (CacheRefused, DeviceError) as error:
            _log.error("Larder is not used: %s", error)

    def unregister_kv_caches(self) -> None:
        """End all copies: the engine is about to free the memory of its KV caches."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
            self._results.add(worker.results())
            report = worker.take_report()
            self._report = self._report.add(report) if self._report and report else report or self._report

    def restore_kv_caches(self) -> None:
        """Attach again: the KV caches are back in the same tensors."""
        if self._kv_caches is not None:
            self.register_kv_caches(self._kv_caches)

    @guarded()
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """End saves whose blocks are about to be overwritten."""
        plan = kv_connector_metadata.plan
        self._reports_layouts = plan.asks_layouts
        if self._worker is not None and plan.cancelled:
            self._worker.before_overwriting(plan.cancelled)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Take the work of a step, and begin its loads beside steps. vLLM calls `start_load_kv` for them only after the
        layers have run; begun here, the copies overlap with the layers."""
        super().bind_connector_metadata(connector_metadata)
        self._begin_loads()

    @guarded()
    def _begin_loads(self) -> None:
        plan = self._get_connector_metadata().plan
        if self._worker is not None:
            self._worker.begin_loads(plan)
            return
        self._results.sent.update(plan.released)
        for load in plan.loads:  # registration failed: no request may wait for these loads, or use their blocks
            if load.in_step or not releases.NAMES_FAILED_REQUESTS:
                self._results.bad_blocks.update(load.blocks[0])
            else:
                self._results.failed.add(load.request)
            if not load.in_step:
                self._results.received.add(load.request)

    @guarded()
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Copy the loads inside this step. vLLM calls it before the layers run if there are any."""
        if self._worker is not None:
            self._worker.load_in_step(self._get_connector_metadata().plan)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: loads inside the step have ended, and for others the request is not in the step."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Do nothing: saves begin after the step."""

    @guarded()
    def wait_for_save(self) -> None:
        """Begin the saves of this step. vLLM up to 0.30 does not call this method if the step computes nothing."""
        if self._worker is not None and self._connector_metadata is not None:
            self._worker.begin_saves(self._get_connector_metadata().plan)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Return the loads and saves that have ended since the last call. vLLM fails if it gets one of them twice."""
        results = self._take_results()
        return releases.transfer_results(results.sent, results.received, results.failed)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Return the same results in the form of vLLM up to 0.29, which learns of failed loads by their blocks."""
        results = self._take_results()
        return results.sent, results.received

    def _take_results(self) -> Results:
        if self._worker is not None:
            self._results.add(self._worker.results())
        results, self._results = self._results, Results(bad_blocks=self._results.bad_blocks)
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the engine's blocks that were not loaded, according to the results since the last call."""
        bad, self._results.bad_blocks = self._results.bad_blocks, set()
        return bad

    @guarded()
    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Return the results of this step for the scheduler's side."""
        if self._worker is not None:
            report = self._worker.take_report()
        else:
            plan = self._get_connector_metadata().plan
            failed = {load.request: 0 for load in plan.loads if load.in_step}
            report = StepReport(loads_failed=failed, step=plan.step)
        earlier, self._report = self._report, None
        if earlier is not None:
            report = earlier if report is None else report.add(earlier)
        if self._reports_layouts:
            self._reports_layouts = False
            report = report or StepReport()
            report.layouts.append(self._groups)
        return None if report is None else LarderWorkerMetadata(report)

    # ---- both

    @guarded()
    def get_kv_connector_stats(self) -> LarderStats | None:
        """Return the counters since the last call, at most once a second."""
        now = time.monotonic()
        if now < self._stats_at:
            return None
        side = self._scheduler or self._worker
        counts = {**({} if side is None else side.take_counts()), **self._counts}
        self._counts = {}
        if errors := self.errors.take_count():
            counts["errors"] = errors
        if not counts:
            return None
        self._stats_at = now + STATS_INTERVAL_S
        return LarderStats(data=counts)

    def shutdown(self) -> None:
        """End copies and disconnect."""
        for side in (self._worker, self._scheduler):
            if side is not None:
                side.close()
        self._worker = self._scheduler = None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> LarderStats | None:
        """Return the statistics that `data` carries."""
        return LarderStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> LarderPromMetrics:
        """Return the Prometheus metrics of this connector."""
        return LarderPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """Return True: the connector handles KV caches that are freed and restored."""
        return True


def _holds_blocks(vllm_config: Any, kv_cache_config: Any) -> bool:
    """Return whether the engine keeps the blocks of a running request until the connector has ended its saves.

    With several precisions, vLLM zeroes blocks that a step allocates, also those of requests that it preempts for the
    step. Its second model runner does so before it calls `handle_preemptions`.
    """
    zeroes = vllm_config.use_v2_model_runner and getattr(kv_cache_config, "needs_kv_cache_zeroing", False)
    return not zeroes and not slides(kv_cache_config)


def _may_load_in_steps(vllm_config: Any, kv_cache_config: Any) -> bool:
    """Return whether loads may be inside steps: if a failed one is certain to be computed again.

    vLLM 0.32 drops the output of the step in which a load failed, but not that of steps under way after it, nor their
    draft tokens; it cannot say which blocks failed with several groups; and its second model runner keeps dropped
    output. Another worker may have stored what it computed from the failed blocks. On a device, copies run beside the
    layers anyway.
    """
    return (
        vllm_config.device_config.device_type == "cpu"
        and vllm_config.parallel_config.world_size == 1
        and vllm_config.max_concurrent_batches == 1
        and vllm_config.speculative_config is None
        and not vllm_config.use_v2_model_runner
        and not slides(kv_cache_config)
    )


def _drops_block(speculative_config: Any) -> bool:
    """Return whether vLLM does not use the last cached block of a prefix. A draft layer of EAGLE or MTP computes the KV
    values of a token from the next one too."""
    drops = getattr(speculative_config, "use_eagle_block_drop", None)  # from 0.30 on
    drops = drops or getattr(speculative_config, "use_eagle", None)
    return drops is not None and drops()


def _hashes_media(vllm_config: Any) -> bool:
    """Return whether vLLM identifies multimodal items by their contents: with both caches off, it numbers them."""
    media = vllm_config.model_config.multimodal_config
    return media is None or media.mm_processor_cache_gb > 0 or vllm_config.cache_config.enable_prefix_caching
