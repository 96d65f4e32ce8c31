"""The scheduler's side: plan loads and saves from shared memory, without waiting.

A request with a hit passes through these methods, which vLLM's scheduler calls by way of `connector`:

1. `matched_tokens` looks the request up and chooses the way in which it gets the hit (`_choose_way`): the tokens are
   loaded inside the step that vLLM is planning, loaded beside steps, or computed. `loads_in_step` tells vLLM which.
2. `allocated` plans the load into the blocks that vLLM has given the request, and leases what the load reads.
3. `plan` hands the planned loads to the workers with the step. Before the layers of the step run, a worker copies the
   loads inside it (`WorkerSide.load_in_step`), and begins the others on its own thread (`WorkerSide.begin_loads`). vLLM
   schedules the request of a load inside the step in this step, and that of a load beside it once the load has ended.
4. `stepped` takes the workers' reports: loads that have ended or failed, and how long they took.

A load is inside the step if the engine allows it (`may_load_in_steps`), and if measured rates say that all requests of
the step together then wait less than the request would beside it, or that beside it, it would wait longer than for its
computation (`rates`). All other loads are beside steps.

This module does not import vLLM. It reads a few attributes of vLLM's requests.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dataplane.client.attaching import attach
from dataplane.client.client import Client
from dataplane.client.leases import Lease
from dataplane.engines.guards import ErrorLog
from dataplane.engines.traces import continued, traceparent_of
from dataplane.engines.vllm.adapters import AdapterFiles, Adapters
from dataplane.engines.vllm.hints import RequestOptions, read_options
from dataplane.engines.vllm.messages import GroupLayout, Load, Save, StepPlan, StepReport
from dataplane.engines.vllm.rates import BreakEven, Way
from dataplane.engines.vllm.request_keys import RequestKeys, Unkeyed, media_digest
from dataplane.engines.vllm.request_reports import RequestOutcome, RequestReports, by_source
from dataplane.engines.vllm.settings import ConnectorSettings
from dataplane.engines.vllm.tier_waits import LookupResult, TierWaits
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST, SpaceRequest
from dataplane.protocol.salts import check_salt

FAILED_S = 5.0
"""Chunks whose load failed count as misses for this long, so that no request loads them again at once."""
MAX_FAILED = 65_536
MAINTENANCE_S = 0.25
"""Interval at which an idle engine looks for a new data plane."""
MAX_STEPS = 64
"""Largest number of steps under way in an engine. Older steps were never reported, and are forgotten."""

WORKERS_WAIT_S = 5.0
"""Longest time that a request waits until the workers have reported their KV-cache groups, which takes one step."""
ADAPTER_WAIT_S = 5.0
"""Longest time that a request waits until the files of its adapter are read. After it, nothing is loaded for it."""
DRAIN_S = 10.0
"""A pause of the engine waits for copies that are under way as long as one ends in this time."""

BlockIds = Callable[[str], "Sequence[Sequence[int]] | None"]

_log = logging.getLogger("larder.vllm")


@dataclass(frozen=True, slots=True)
class _StepLoad:
    """A load inside a step."""

    request: Any
    first: int
    """Number of tokens before it."""
    blocks: list[int]
    """All blocks of the request."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What a load under way reads. It is kept after an abort of its request."""

    keys: list[bytes]
    skip_tokens: int
    """Tokens at the beginning of the first chunk that are not loaded."""
    lease: Lease


@dataclass(slots=True)
class _Step:
    """A step under way that computes tokens."""

    number: int
    started: float
    tokens: int
    loads: dict[str, _StepLoad]


@dataclass(frozen=True, slots=True)
class _LookUp:
    """Result of a request's last look-up."""

    chunks: int
    hits: int
    """Leading chunks that are in memory."""
    hit_end: int
    """Number of leading tokens in these chunks that the request can use."""
    loadable: int
    """Number of these tokens that the engine's own cache lacks."""
    offered: int
    """Number of these tokens that the engine was offered."""
    reason: str
    """Why the next chunk is not in memory, of `ENGINE_REASONS`; empty if the engine does not know."""


@dataclass(slots=True, kw_only=True)
class _Tracked:
    """State of one request."""

    request: Any
    began: float
    keys: RequestKeys | None = None
    """None until it is known what the request's KV is computed from."""
    keyed: bool = True
    """False if the request is neither loaded nor saved."""
    loads: bool
    saves: bool
    options: RequestOptions
    traceparent: str = ""
    looked_up: bool = False
    answered: bool = False
    """Whether a look-up had a result other than to wait. After that, the request never waits."""
    lookup: _LookUp | None = None
    sources: dict[int, str] = field(default_factory=dict)
    """Where chunks were that tiers held at the first look-up, by position."""
    outcome: RequestOutcome | None = None
    """What the request got; None until vLLM has scheduled it."""
    counted: bool = False
    """Whether the request is in the counts of look-ups and hits."""
    local_tokens: int = 0
    """Tokens in the engine's own cache at the last look-up."""
    allocations: int = 0
    """Calls of `allocated` since the last look-up: two for a load that vLLM waits for before it schedules the
    request."""
    unproven_until: int = 0
    """Number of the step whose end proves that another connector has loaded the request's tokens: until then, nothing
    of the request is saved. 0 if nothing is to be proven."""
    loading_tokens: int = 0
    """Number of tokens of the load that is under way."""
    in_step: bool = False
    """Whether the load is to be inside the step, by the last look-up."""
    alone: bool = False
    """Whether the load was planned with no other request in the engine."""
    load_planned: float = 0.0
    saved_chunks: int = 0
    """Leading chunks that are cached, or for which a save has been planned."""
    hinted_chunks: int = 0
    """Leading cached chunks to which the request's hint `pin` and its session have not been applied yet."""
    saves_open: int = 0
    """Number of saves that have not ended, summed over all workers."""


class SchedulerSide:
    """Loads and saves of one engine's requests."""

    def __init__(
        self,
        settings: ConnectorSettings,
        *,
        group: str,
        engine: str,
        block_tokens: int,
        evict: Callable[[set[int]], None],
        loads: bool = True,
        saves: bool = True,
        may_load_in_steps: bool = False,
        hashes_media: bool = True,
        adapter_options: str = "",
        first_step_overwrites: bool = False,
        drops_block: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`block_tokens`: vLLM's scheduling granularity; loads end on multiples of it. `may_load_in_steps`:
        whether the engine computes again what a failed load inside a step has spoiled, for which `evict` removes blocks
        from its own prefix cache. `hashes_media`: as in `RequestKeys`; `adapter_options`: as in `Adapters`.
        `first_step_overwrites`: whether the engine's first step writes to all its blocks, so that nothing may be loaded
        until it has ended. `drops_block`: whether a hit ends a block before the end of its last chunk, because KV
        values of the chunk's last token depend on the next token. Raise ValueError."""
        if settings.chunk_tokens % block_tokens:
            raise ValueError(
                f"kv_connector_extra_config.larder.chunk_tokens: expected a multiple of the block size {block_tokens},"
                f" got {settings.chunk_tokens}"
            )
        self.counts: dict[str, float] = {}
        """Counts since the last call of `take_counts`."""
        self._settings = settings
        self._group = group
        self._engine = engine
        self._block_tokens = block_tokens
        self._loads = loads
        self._saves = saves
        self._may_load_in_steps = may_load_in_steps
        """Whether loads may be inside steps."""
        self._evict = evict
        self._hashes_media = hashes_media
        self._first_step_overwrites = first_step_overwrites
        self._dropped_tokens = block_tokens if drops_block else 0
        self._clock = clock
        self._adapters = Adapters(adapter_options)
        self._errors = ErrorLog(_log, clock)
        self._client: Client | None = None
        self._closed = threading.Event()
        self._page_tokens: list[int] = []
        self._workers = 0
        """Number of workers; 0 until their KV-cache groups are known."""
        self._refused = False
        """Whether Larder cannot serve the workers' KV caches."""
        self._tracked: dict[str, _Tracked] = {}
        self._plan = StepPlan()
        self._receiving: set[str] = set()
        """Requests whose load is planned and not yet reported as ended by all workers."""
        self._reads: dict[str, _Read] = {}
        """What each load under way reads, by request."""
        self._failed: OrderedDict[bytes, float] = OrderedDict()
        """Keys that count as misses, each with the time when this ends."""
        self._namespace = ""
        self._break_even = BreakEven(settings.min_load_tokens)
        self._tier_waits = TierWaits(settings.tier_timeout_s, self._break_even, clock, self._count)
        self._reports = RequestReports()
        self._steps: deque[_Step] = deque(maxlen=MAX_STEPS)
        """Steps under way: an engine may plan a step before the previous one ends."""
        self._step_number = 0
        self._step_ended = 0.0
        self._last_ended = 0
        """Number of the last step that ended."""
        self._step_loads: dict[str, _StepLoad] = {}
        """Loads inside the step that is being planned."""
        self._step_load_s = 0.0
        """Expected duration of these loads."""
        self._scheduled: list[str] = []
        """Requests of the last step."""
        self._copying_at = 0.0
        """When a copy was last planned or reported as ended."""

    def workers_ready(self, workers: Iterable[Sequence[GroupLayout]]) -> None:
        """Attach to the spaces of all workers. Raise ValueError."""
        layouts = list(workers)
        if not layouts or not all(layouts):
            raise ValueError("a worker has no KV cache that Larder can copy")
        if len(layouts) != (expected := layouts[0][0].space.world_size):
            raise ValueError(f"expected the KV-cache groups of {expected} workers, got those of {len(layouts)}")
        if len({(layout.space.model, layout.space.revision) for worker in layouts for layout in worker}) > 1:
            # Each layer's KV values depend on the weights of all workers.
            raise ValueError("the workers have loaded different weights")
        self._page_tokens = [layout.page_tokens for layout in layouts[0]]
        self._workers = len(layouts)
        self._may_load_in_steps &= all(layout.alone for worker in layouts for layout in worker)
        spaces = [SpaceRequest(layout.space, writes=False) for worker in layouts for layout in worker]
        self._client = attach(
            self._settings.socket, spaces, group=self._group, engine=self._engine, timeout_s=self._settings.timeout_s,
            keep_trying=True,
        )  # fmt: skip
        self._client.maintain()  # asks for the tier directory, so that the first request finds it
        threading.Thread(target=self._maintain, args=(self._client,), name="larder", daemon=True).start()

    def _take_layouts(self, workers: Sequence[Sequence[GroupLayout]]) -> None:
        """Take the groups that the workers of a step have reported. They are ordered by rank, because vLLM does not say
        in which order it adds up reports."""
        if self._workers or self._refused:
            return
        try:
            self.workers_ready(sorted(workers, key=lambda groups: groups[0].space.rank if groups else -1))
        except ValueError as error:
            self._refused = True
            _log.error("Larder is not used: %s", error)

    def _maintain(self, client: Client) -> None:
        """Keep an idle engine attached."""
        while not self._closed.wait(MAINTENANCE_S):
            client.maintain()

    # ---- looking up

    def matched_tokens(self, request: Any, local_tokens: int) -> int | None:
        """Return how many tokens beyond the first `local_tokens` can be loaded, a multiple of the block size. None: the
        request waits for blocks from tiers, or for a load inside this step; ask again."""
        tracked = self._track(request)
        if self._shares_step_load(request, local_tokens):
            return None
        tracked.local_tokens, tracked.allocations = local_tokens, 0
        keyed = self._find_keys(tracked)
        if keyed is False or not (tracked.loads or tracked.saves):
            return 0
        if self._client is None:
            # Without a wait, the first prompt of an engine would be neither loaded nor, if it is one step, saved.
            return None if not self._refused and self._may_wait(tracked, WORKERS_WAIT_S) else 0
        if not tracked.loads or (self._first_step_overwrites and not self._last_ended):
            return 0
        if keyed is None or tracked.keys is None:
            return None if self._may_wait(tracked, ADAPTER_WAIT_S) else 0
        if self._tier_waits.looked_up_lately(request.request_id):
            return None
        started = time.perf_counter()
        # vLLM always computes the last token, because its output is the next token.
        most: int = (request.num_tokens - 1) // self._block_tokens * self._block_tokens
        keys = tracked.keys.extend(request, request.num_tokens)[: self._chunks(most + self._dropped_tokens)]

        def hit_end(chunks: int) -> int:
            return max(0, min(chunks * self._settings.chunk_tokens - self._dropped_tokens, most))

        def loadable(chunks: int) -> int:
            return max(0, hit_end(chunks) - local_tokens)

        # A request that waits is looked up again in each step, without a span.
        traceparent = "" if tracked.looked_up else tracked.traceparent
        usable = self._without_failed(keys)
        with continued(self._client, traceparent, "vllm.lookup") as span:
            lookup = self._tier_waits.look_up(
                self._client,
                request.request_id,
                usable,
                loadable,
                tenant=tracked.keys.tenant,
                # vLLM ignores the answer for a request that skips reading, even if the answer is to wait.
                may_wait=not tracked.answered and not getattr(request, "skip_reading_prefix_cache", False),
            )
            span.set(
                {
                    "larder.chunks": len(keys),
                    "larder.hits": lookup.hits if lookup else 0,
                    "larder.waits": lookup is None,
                }
            )
        tracked.looked_up = True
        offered = None
        if lookup is not None:
            hits = lookup.hits
            offered = self._choose_way(tracked, hits, loadable(hits))
            tracked.lookup = _LookUp(
                len(keys), hits, hit_end(hits), loadable(hits), offered,
                self._reason(lookup, usable, keys),
            )  # fmt: skip
            tracked.sources.update(lookup.sources)
        self._count("lookup_seconds", time.perf_counter() - started)
        return offered

    def _reason(self, lookup: LookupResult, usable: Sequence[bytes], keys: Sequence[bytes]) -> str:
        """Return why the first missing chunk is not in memory, as far as the engine knows."""
        if self._client is None or not self._client.connected:
            return "data_plane_away"
        return "load_failed" if lookup.hits == len(usable) < len(keys) else lookup.reason

    def _may_wait(self, tracked: _Tracked, most_s: float) -> bool:
        """Return whether a request may wait for something that takes up to `most_s` seconds."""
        return not tracked.answered and self._clock() - tracked.began < most_s

    def _choose_way(self, tracked: _Tracked, hits: int, loadable_tokens: int) -> int:
        """Choose whether a request loads the `loadable_tokens` in `hits` chunks inside the step, beside steps, or not
        at all. Return how many it loads: all or none."""
        first, tracked.answered = not tracked.answered, True
        tracked.saved_chunks = max(tracked.saved_chunks, hits)
        if first and (tracked.options.pin_s or tracked.options.session):
            tracked.hinted_chunks = hits
        if not loadable_tokens:
            return 0
        other_requests = sum(name in self._tracked for name in self._scheduled) + len(self._step_loads)
        left_s = self._settings.step_load_s - self._step_load_s if self._may_load_in_steps else 0.0
        way = self._break_even.way(loadable_tokens, self._clock(), requests=1 + other_requests, step_s=left_s)
        tracked.in_step, tracked.alone = way is Way.IN_STEP, not other_requests
        return 0 if way is Way.COMPUTE else loadable_tokens

    def sources(self, request: str) -> dict[str, int]:
        """Return where the tokens were that a request was scheduled to load: keys of `misses.SOURCES`."""
        tracked = self._tracked.get(request)
        return {} if tracked is None or tracked.outcome is None else tracked.outcome.loaded_tokens

    def loads_in_step(self, request: str) -> bool:
        """Return whether the tokens of the last look-up of a request are to be loaded inside the step."""
        tracked = self._tracked.get(request)
        return tracked is not None and tracked.in_step

    def _shares_step_load(self, request: Any, local_tokens: int) -> bool:
        """Return whether the engine's own blocks of a request are among those that are loaded inside this step. Until
        the load has succeeded, they must not be used."""
        return any(
            local_tokens > load.first and request.all_token_ids[:end] == load.request.all_token_ids[:end]
            for load in self._step_loads.values()
            if (end := load.first + self._block_tokens)
        )

    def _count_lookup(self, tracked: _Tracked, loaded: int) -> None:
        """Count the look-up of a request that vLLM schedules for the first time, with the tokens that are loaded. What
        vLLM does not use is no hit."""
        lookup, tracked.lookup = tracked.lookup, None
        if tracked.counted or lookup is None or tracked.keys is None or self._client is None:
            return
        if getattr(tracked.request, "skip_reading_prefix_cache", False):
            return
        tracked.counted = True
        self._count("lookups", 1)
        self._count("lookup_tokens", max(0, tracked.request.num_tokens - tracked.local_tokens))
        self._count("hit_tokens", loaded)
        if lookup.loadable > loaded:
            self._count("recomputed_tokens", lookup.loadable - loaded)
        end = tracked.local_tokens + loaded
        hits = lookup.hits if end >= lookup.hit_end else end // self._settings.chunk_tokens
        self._client.count_lookup(lookup.chunks, hits, tenant=tracked.keys.tenant)

    def _note_outcome(self, tracked: _Tracked, loaded: int) -> None:
        """Note what a request gets that vLLM schedules for the first time, with the tokens that are loaded, and report
        it. Look-ups do no work for that."""
        request, step, lookup = tracked.request, self._settings.chunk_tokens, tracked.lookup
        start, end, tokens = tracked.local_tokens, tracked.local_tokens + loaded, request.num_tokens
        usable = min(
            (tokens - 1) // self._block_tokens * self._block_tokens, tokens // step * step - self._dropped_tokens
        )
        reads = not getattr(request, "skip_reading_prefix_cache", False)
        # What was offered to a request that reads and is not loaded, another connector loads.
        had = max(end, start + lookup.offered) if reads and lookup is not None else end
        missed, reason, key, bare_key = max(0, usable - had), "", b"", b""
        if tokens < step:
            missed, reason = max(0, tokens - end), "too_short"
        elif not missed:
            pass
        elif not tracked.keyed:
            reason = "unkeyed"
        elif not tracked.loads or self._refused or not reads:
            reason = "not_used"
        elif self._client is None:
            reason = "data_plane_away"
        elif lookup is None or tracked.keys is None:
            reason = "not_used"
        elif lookup.loadable > lookup.offered:
            reason = "recompute_faster"
        elif lookup.reason:
            reason = lookup.reason
        else:
            key = tracked.keys.keys[lookup.hits]
            bare_key = b"" if lookup.hits or not tracked.keys.adapter else tracked.keys.without_adapter(request)
        tracked.outcome = outcome = RequestOutcome(
            request=request.request_id,
            tenant=_tenant_of(request),
            prompt_tokens=tokens,
            engine_tokens=start,
            loaded_tokens=by_source(tracked.sources, start, end, step),
            missed_tokens=missed,
            reason=reason,
        )
        if self._client is not None:
            with continued(self._client, tracked.traceparent, "vllm.scheduled") as span:
                span.set({**outcome.span_attributes(), "gen_ai.usage.cache_read.input_tokens": end})
        self._reports.report(self._client, outcome, key, bare_key)

    def _chunks(self, tokens: int) -> int:
        """Return the number of chunks that contain the first `tokens` tokens."""
        return -(-tokens // self._settings.chunk_tokens)

    def _without_failed(self, keys: list[bytes]) -> list[bytes]:
        """Return the leading keys whose last load did not fail."""
        if not self._failed:
            return keys
        now = self._clock()
        while self._failed and next(iter(self._failed.values())) <= now:
            self._failed.popitem(last=False)
        for at, key in enumerate(keys):
            if key in self._failed:
                return keys[:at]
        return keys

    def _track(self, request: Any) -> _Tracked:
        existing = self._tracked.get(request.request_id)
        if existing is not None:
            return existing
        options = read_options(request)
        if options.ignored:
            self._count("ignored_hints", len(options.ignored))
            _log.warning("request %.80r: ignored: %s", request.request_id, "; ".join(options.ignored)[:1024])
        elif unsupported := self._unsupported(request, options):
            self._count("ignored_hints", unsupported)
        tracked = _Tracked(
            request=request,
            began=self._clock(),
            # The tokens of a resumable request may change, not only grow.
            keyed=not getattr(request, "resumable", False),
            loads=self._loads and not options.skip_load,
            saves=self._saves and not options.skip_save,
            options=options,
            traceparent=traceparent_of(getattr(request, "trace_headers", None)),
        )
        self._tracked[request.request_id] = tracked
        return tracked

    def _unsupported(self, request: Any, options: RequestOptions) -> int:
        """Return the number of hints of a request that have no effect in the data plane."""
        if self._client is None:
            return 0
        hints = 0 if self._client.hint_max_s else bool(options.ttl_s) + bool(options.pin_s)
        names_session = options.session not in ("", getattr(request, "session_id", None))
        return hints + (names_session and not self._client.knows_sessions)

    def _find_keys(self, tracked: _Tracked) -> bool | None:
        """Return whether a request has keys, and begin them. None: the files of its adapter are being read."""
        request, lora = tracked.request, tracked.request.lora_request
        if not tracked.keyed or (lora is None and tracked.keys is not None):
            return tracked.keyed
        try:
            adapter: str | None = ""
            if lora is not None:
                adapter = self._adapters.identity(
                    lora,
                    own_blocks=tracked.local_tokens > 0,
                    own_media=any(
                        media_digest(request, feature) != feature.identifier for feature in request.mm_features or ()
                    ),
                )
            if adapter is None:
                return None
            if tracked.keys is None:
                tracked.keys = RequestKeys(
                    request, self._settings.chunk_tokens,
                    adapter=adapter, namespace=self._namespace, hashes_media=self._hashes_media,
                )  # fmt: skip
            elif tracked.keys.adapter != adapter:
                raise Unkeyed("adapter", f"adapter {lora.lora_name!r:.80} was loaded again while the request ran")
        except Unkeyed as error:
            tracked.keyed, tracked.keys = False, None
            self._count(f"unkeyed_requests:{error.reason}", 1)
            if self._errors.due(error.reason):
                _log.warning("request %.80r is neither loaded nor saved: %s", request.request_id, error)
        return tracked.keyed

    def adapter_loaded(self, lora: Any, before: AdapterFiles | None) -> None:
        """Note that vLLM added an adapter. `before`: its files before that."""
        self._adapters.loaded(lora, before)

    # ---- loading

    def allocated(self, request: Any, blocks: Sequence[Sequence[int]], tokens: int) -> None:
        """Plan the load of `tokens` tokens, which may be 0, into the blocks of a request that vLLM schedules."""
        tracked = self._track(request)
        if tracked.outcome is None:
            self._note_outcome(tracked, tokens)
        self._count_lookup(tracked, tokens)
        tracked.allocations += 1
        if not tokens:
            return
        step = self._settings.chunk_tokens
        first, end = tracked.local_tokens // step, tracked.local_tokens + tokens
        keys = [] if tracked.keys is None else tracked.keys.keys[first : self._chunks(end)]
        skip = tracked.local_tokens - first * step
        tracked.loading_tokens, tracked.load_planned = tokens, self._clock()
        self._plan_load(
            Load(
                request.request_id,
                b"".join(keys),
                skip,
                tokens,
                tuple(
                    list(ids[tracked.local_tokens // page : -(-end // page)])
                    for ids, page in zip(blocks, self._page_tokens, strict=True)
                ),
                tracked.traceparent,
                tracked.in_step,
                self._break_even.limit_s(tokens),
            )
        )
        if tracked.in_step:
            self._step_loads[request.request_id] = _StepLoad(request, tracked.local_tokens, list(blocks[0]))
            self._step_load_s += self._break_even.step_copy_s(tokens, tracked.load_planned)
        if self._client is not None:
            self._reads[request.request_id] = _Read(keys, skip, self._client.hold(keys))

    def give_up(self, request: Any, blocks: Sequence[Sequence[int]], tokens: int) -> None:
        """Make the load of a request fail, unless the load is planned already."""
        name = request.request_id
        if not tokens or any(load.request == name for load in self._plan.loads):
            return
        tracked = self._tracked.get(name)
        if tracked is not None:
            tracked.loading_tokens = tokens
        first = 0 if tracked is None or tracked.in_step else tracked.local_tokens
        numbers = tuple(list(ids[first // page :]) for ids, page in zip(blocks, self._page_tokens, strict=False))
        in_step = self.loads_in_step(name)
        if in_step:
            self._step_loads[name] = _StepLoad(request, 0, list(blocks[0]))
        self._plan_load(Load(name, b"", 0, tokens, numbers, in_step=in_step))

    def _plan_load(self, load: Load) -> None:
        self._plan.loads.append(load)
        if not load.in_step:
            self._copying_at = self._clock()
            self._receiving.add(load.request)

    # ---- steps

    def plan(self, scheduled: Mapping[str, int], blocks_of: BlockIds, preempted: Iterable[str] = ()) -> StepPlan:
        """Return the work of a step that computes `scheduled` tokens for each request, and begin the next plan."""
        plan, self._plan = self._plan, StepPlan()
        plan.asks_layouts = not self._workers and not self._refused
        # A request that a reset has preempted may have been aborted since.
        plan.cancelled = list(preempted)
        for name in plan.cancelled:
            tracked = self._tracked.get(name)
            if tracked is not None and tracked.saves_open:
                tracked.saved_chunks = 0
        for name, count in scheduled.items():
            tracked = self._tracked.get(name)
            if tracked is None:
                continue
            try:
                self._plan_save(plan, tracked, count, blocks_of)
            except Exception:  # noqa: BLE001  the loads of the step must reach the workers
                tracked.saves = False
                _log.exception("request %.80r is not saved", name)
        loads, self._step_loads, self._step_load_s = self._step_loads, {}, 0.0
        if scheduled:
            self._scheduled = list(scheduled)
            self._step_number += 1
            plan.step = self._step_number
            self._steps.append(_Step(plan.step, self._clock(), sum(scheduled.values()), loads))
        return plan

    def _plan_save(self, plan: StepPlan, tracked: _Tracked, count: int, blocks_of: BlockIds) -> None:
        """Plan to save the chunks of a request that this step completes."""
        request = tracked.request
        if (
            tracked.allocations == 1
            and not tracked.loading_tokens
            and request.num_computed_tokens > tracked.local_tokens
        ):
            # Under MultiConnector, another connector loads these tokens within this step, and says whether it could
            # only after the step. Blocks that it could not load must not be stored.
            tracked.unproven_until = self._step_number + 1
        tracked.allocations = 0
        if not tracked.saves or not self._workers or self._last_ended < tracked.unproven_until:
            return
        if tracked.hinted_chunks and tracked.keys is not None:
            cached, tracked.hinted_chunks = tracked.keys.keys[: tracked.hinted_chunks], 0
            for first in range(0, len(cached), MAX_KEYS_PER_REQUEST):
                self._add_save(plan, tracked, cached, first, min(len(cached), first + MAX_KEYS_PER_REQUEST), ())
        step = self._settings.chunk_tokens
        savable_tokens = request.num_tokens if self._settings.save_decode else request.num_prompt_tokens
        # Draft tokens are computed too but may be rejected, so only accepted tokens count.
        chunks = min(request.num_computed_tokens + count, savable_tokens, request.num_tokens) // step
        if chunks <= tracked.saved_chunks or not self._find_keys(tracked) or tracked.keys is None:
            return
        blocks = blocks_of(request.request_id)
        if blocks is None:
            return
        keys = tracked.keys.extend(request, chunks * step)
        for first in range(tracked.saved_chunks, chunks, MAX_KEYS_PER_REQUEST):
            end = min(chunks, first + MAX_KEYS_PER_REQUEST)
            numbers = tuple(
                list(ids[first * step // page : end * step // page])
                for ids, page in zip(blocks, self._page_tokens, strict=True)
            )
            self._add_save(plan, tracked, keys, first, end, numbers)
        tracked.saved_chunks = chunks

    def _add_save(
        self,
        plan: StepPlan,
        tracked: _Tracked,
        keys: Sequence[bytes],
        first: int,
        end: int,
        blocks: tuple[list[int], ...],
    ) -> None:
        """Plan to save chunks `first` to `end` of a prompt with these keys."""
        assert tracked.keys is not None
        options = tracked.options
        plan.saves.append(
            Save(
                tracked.request.request_id,
                b"".join(keys[first:end]),
                tracked.keys.tenant,
                blocks,
                options.ttl_s,
                options.pin_s,
                tracked.traceparent,
                keys[first - 1] if first else b"",
                options.session,
            )
        )
        tracked.saves_open += self._workers
        self._copying_at = self._clock()

    def stepped(self, report: StepReport | None, received: Iterable[str], failed: Iterable[str] = ()) -> None:
        """Apply the results of a step. `received` are the requests whose loads have ended; of these, `failed` are those
        whose loads failed as a whole."""
        now = self._clock()
        step_loads: dict[str, _StepLoad] = {}
        if report is not None:
            self._copying_at = now
            if report.layouts:
                self._take_layouts(report.layouts)
            while self._steps and self._steps[0].number <= report.step:
                step = self._steps.popleft()
                step_loads |= step.loads
                if step.number == report.step:
                    seconds = now - max(step.started, self._step_ended) - report.step_load_seconds
                    self._break_even.note_step(step.tokens, seconds)
                self._step_ended, self._last_ended = now, step.number
            # Workers load at the same time: together they take as long as one.
            share = max(1, self._workers)
            self._break_even.note_load(report.loaded_tokens, report.load_seconds / share, now)
            self._break_even.note_load(report.step_loaded_tokens, report.step_load_seconds, now, in_step=True)
            for name, count in report.saves_ended.items():
                if name in self._tracked:
                    self._tracked[name].saves_open -= count
            for name, loaded in report.loads_failed.items():
                if name in step_loads:
                    # The engine has put blocks into its own prefix cache that were not loaded, or were computed from
                    # them. Without this, they would be hits of other requests before they are computed again.
                    load = step_loads[name]
                    self._evict(set(load.blocks[(load.first + loaded) // self._page_tokens[0] :]))
                self._load_failed(name, loaded)
                if name not in report.loads_dropped:
                    self._miss(name, 0 if name in report.loads_late else loaded, now)
        for name in self._receiving.intersection(failed):  # MultiConnector passes on those of all its connectors
            self._load_failed(name, 0)
            if report is None or name not in report.loads_dropped:
                self._miss(name, 0, now)
        for name in [*received, *step_loads]:
            self._receiving.discard(name)
            self._reads.pop(name, None)
            tracked = self._tracked.get(name)
            if tracked is not None:
                if name not in step_loads and tracked.loads:
                    seconds = now - tracked.load_planned
                    self._break_even.note_delay(tracked.loading_tokens, seconds, now, alone=tracked.alone)
                tracked.loading_tokens = 0

    def _load_failed(self, name: str, loaded: int) -> None:
        """Of a load that failed on a rank, count the `loaded` leading tokens, and load nothing more for its request."""
        tracked = self._tracked.get(name)
        if tracked is None:
            return
        if tracked.loads:  # once, however many ranks report it
            self._count("failed_loads", 1)
        tracked.loads = False
        tracked.saved_chunks = 0
        lost = tracked.loading_tokens - min(tracked.loading_tokens, loaded)
        tracked.loading_tokens -= lost
        if lost and tracked.outcome is not None:
            begun, chunk = tracked.local_tokens, self._settings.chunk_tokens
            sources = by_source(tracked.sources, begun, begun + tracked.loading_tokens, chunk)
            self._reports.load_failed(self._client, tracked.outcome, sources, lost)

    def _miss(self, name: str, loaded: int, now: float) -> None:
        """Make the chunks of a load after the `loaded` leading tokens misses. Of a late load, all are: the next one
        would be as slow."""
        read = self._reads.get(name)
        if read is None:
            return
        for key in read.keys[(read.skip_tokens + loaded) // self._settings.chunk_tokens :]:
            self._failed.pop(key, None)
            self._failed[key] = now + FAILED_S
        while len(self._failed) > MAX_FAILED:
            self._failed.popitem(last=False)

    # ---- the end

    def copying(self) -> bool:
        """Return whether copies of the engine's blocks are under way, which read or write its KV caches. False if none
        has ended for longer than a copy takes: then no worker is going to report its end."""
        if self._clock() - self._copying_at > DRAIN_S + self._settings.load_timeout_s:
            return False
        return bool(self._receiving) or any(tracked.saves_open > 0 for tracked in self._tracked.values())

    def finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """Forget a request, and cancel its loads. Return whether its blocks must stay until its saves have ended, and
        the fields for its client's response."""
        self._tier_waits.forget(self._client, request.request_id)
        receiving = request.request_id in self._receiving
        if receiving:
            self._plan.dropped_loads.append(request.request_id)
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return False, None
        fields = None
        if tracked.outcome is not None:
            if receiving:
                tracked.outcome.loaded_tokens = {}
            fields = self._reports.fields(self._client, tracked.outcome)
        # vLLM keeps the blocks for a load that is under way. If saves kept them too, vLLM would free them twice.
        if tracked.saves_open <= 0 or receiving:
            return False, fields
        self._plan.released.append(request.request_id)
        return True, fields

    def reset(self) -> bool:
        """Make everything stored so far a miss for this engine, for example after new weights were loaded. Loads under
        way end, and their tokens are computed."""
        self._namespace = f"reset-{os.urandom(16).hex()}"
        for tracked in self._tracked.values():
            tracked.keys, tracked.keyed = None, False
        self._tier_waits.clear(self._client)
        self._plan.dropped_loads += self._receiving
        return True

    def take_counts(self) -> dict[str, float]:
        """Return the counts since the last call."""
        counts, self.counts = self.counts, {}
        return counts

    def _count(self, name: str, by: float) -> None:
        self.counts[name] = self.counts.get(name, 0) + by

    def close(self) -> None:
        """Release all leases and disconnect."""
        self._closed.set()
        self._reads.clear()
        self._adapters.close()
        if self._client is not None:
            self._client.close()


def _tenant_of(request: Any) -> str:
    """Return the salt of a request; that of the default tenant if it is not valid, so that its report is not refused,
    whatever size it has."""
    try:
        return check_salt(request.cache_salt or "")
    except ProtocolError:
        return ""
