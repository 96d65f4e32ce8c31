"""The scheduler's and a worker's side on a real data plane, without vLLM."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from dataplane.client.reservations import Reservation
from dataplane.devices.runtime import DeviceError
from dataplane.engines.vllm.copies import CpuCopies
from dataplane.engines.vllm.messages import GroupLayout, Save, StepPlan, StepReport
from dataplane.engines.vllm.request_keys import RequestKeys
from dataplane.engines.vllm.scheduler import ADAPTER_WAIT_S, FAILED_S, SchedulerSide
from dataplane.engines.vllm.settings import ConnectorSettings
from dataplane.engines.vllm.worker import SAVE_WAIT_S, WorkerSide
from dataplane.protocol.control.prefixes import Trace
from dataplane.protocol.control.requests import FindRequests, RequestsFound
from dataplane.protocol.control.scopes import Invalidate, Scope
from dataplane.protocol.control.sessions import ListSessions, SessionsListed, SessionState
from dataplane.protocol.keys import KEY_BYTES
from tests.clock import Clock
from tests.dataplane.plane import Plane, wait_for
from tests.engines.vllm.fakes import CHUNK_TOKENS, CHUNKED, PAGE_TOKENS, SOURCE, TARGET, TOKENS, Request, cache, image
from tests.engines.vllm.models import lora, write_adapter
from tests.engines.vllm.sides import Make, Step, engine, make_engine

__all__ = ["engine", "make_engine"]


def _wait(gate: threading.Event) -> None:
    gate.wait(60)


def same(one: list[list[torch.Tensor]], other: list[list[torch.Tensor]]) -> bool:
    return all(torch.equal(torch.stack(a), torch.stack(b)) for a, b in zip(one, other, strict=True))


def test_another_engine_loads_the_same_bytes(make_engine: Make) -> None:
    first, second = make_engine(2), make_engine(2)
    source, target = SOURCE, list(range(40, 27, -1))
    first.compute(Request("a", TOKENS, "acme"), source, seed=7)
    request = Request("b", [*TOKENS[:CHUNKED], 5, 6, 7], "acme")
    tokens, found = second.load(request, target)
    assert tokens == CHUNKED
    assert all(each.received == {"b"} and not each.bad_blocks for each in found)
    for one, other in zip(first.caches, second.caches, strict=True):
        assert same(one.read(source[:12]), other.read(target[:12]))
        assert not any(tensor.any() for tensor in other.read([target[12]])[0]), "blocks beyond are left alone"
    fields = {"loaded_tokens": CHUNKED, "missed_tokens": 0, "loaded_from": {"host": CHUNKED}}
    assert second.scheduler.finished(request) == (False, {"larder": fields})
    assert second.scheduler.matched_tokens(Request("c", TOKENS, "rival"), 0) == 0


def test_a_load_begins_and_ends_within_chunks(engine: Step) -> None:
    source = SOURCE
    engine.compute(Request("a", TOKENS), source, seed=1)
    target = list(range(20, 33))
    engine.caches[0].fill(target, seed=2)
    before = engine.caches[0].read(target)
    # The engine has 80 of the 192 tokens. It computes the last token itself, and so the whole last block.
    tokens, _ = engine.load(Request("b", TOKENS[:CHUNKED]), target, local=80)
    assert tokens == 96
    after = engine.caches[0].read(target)
    assert same(after[:5], before[:5])
    assert same(after[5:11], engine.caches[0].read(source)[5:11])
    assert same(after[11:], before[11:])


def test_a_chunk_that_one_rank_lacks_is_a_miss(make_engine: Make) -> None:
    engine = make_engine(2)
    request = Request("a", TOKENS)
    engine.track(request, SOURCE)
    plan = engine.plan({"a": 200})
    engine.workers[0].begin_saves(plan)
    wait_for(lambda: engine.workers[0].take_report(), "the save ends")
    assert engine.scheduler.matched_tokens(Request("b", TOKENS), 0) == 0
    engine.workers[1].begin_saves(plan)
    wait_for(lambda: engine.workers[1].take_report(), "both have it")
    assert engine.found(Request("c", TOKENS)) == CHUNKED


def test_nothing_is_loaded_before_a_first_step_that_writes_to_all_blocks_has_ended(make_engine: Make) -> None:
    first, engine = make_engine(), make_engine()
    first.compute(Request("a", TOKENS), SOURCE, seed=3)
    engine.scheduler._first_step_overwrites = True
    engine.run()
    assert engine.found(Request("b", TOKENS)) == 0, "a step without tokens runs no layers"
    plan = engine.plan({"b": 200})
    assert engine.found(Request("c", TOKENS)) == 0, "the step is under way"
    engine.carry_out(plan)
    assert engine.found(Request("d", TOKENS)) == CHUNKED


@pytest.mark.parametrize(
    ("tokens", "expected"), [(CHUNKED + 1, 176), (CHUNKED, 176), (CHUNKED + 20, 176), (CHUNKED - 1, 112), (64, 48)]
)
def test_a_hit_of_an_engine_whose_draft_reads_the_next_token_ends_before_the_end_of_a_chunk(
    make_engine: Make, tokens: int, expected: int
) -> None:
    """The key of a chunk does not say which token is next, so the engine computes the last block of its last token."""
    first, engine = make_engine(), make_engine()
    first.compute(Request("a", [*TOKENS, *range(20)]), list(range(1, 15)), seed=3)
    engine.scheduler._dropped_tokens = PAGE_TOKENS
    request = Request("b", [*TOKENS, *range(20)][:tokens])
    loaded, _ = engine.load(request, TARGET)
    assert loaded == expected
    (_, fields) = engine.scheduler.finished(request)
    assert fields is not None
    assert (fields["larder"]["loaded_tokens"], fields["larder"]["missed_tokens"]) == (expected, 0)
    assert engine.scheduler.matched_tokens(Request("c", request.all_token_ids), expected) == 0


def test_of_whole_chunks_of_one_block_such_a_hit_leaves_one_out(make_engine: Make) -> None:
    first, engine = make_engine(), make_engine()
    first.compute(Request("a", [*TOKENS, *range(20)]), list(range(1, 15)), seed=3)
    engine.scheduler._block_tokens = engine.scheduler._dropped_tokens = CHUNK_TOKENS
    request = Request("b", TOKENS[:CHUNKED])
    assert engine.load(request, TARGET)[0] == CHUNKED - CHUNK_TOKENS
    (_, fields) = engine.scheduler.finished(request)
    assert fields is not None
    assert fields["larder"]["missed_tokens"] == 0


def test_a_load_that_fails_is_a_miss_until_some_time_has_passed(make_engine: Make, plane: Plane, clock: Clock) -> None:
    first, engine = make_engine(), make_engine()
    first.compute(Request("a", TOKENS), SOURCE, seed=3)
    request = Request("b", TOKENS)
    assert engine.begin_load(request, SOURCE) == CHUNKED
    plan = engine.plan()
    (load,) = plan.loads
    object.__setattr__(load, "keys", load.keys[:32] + bytes(32) + load.keys[64:])  # the second chunk is gone
    (found,) = engine.end_load(engine.carry_out(plan))
    assert (found.received, found.failed) == ({"b"}, set())
    assert found.bad_blocks == set(range(5, 13)), "the longest loaded prefix counts"
    assert engine.scheduler.matched_tokens(request, 0) == 0
    assert engine.scheduler.matched_tokens(Request("c", TOKENS), 0) == 64, "others do not try the rest at once"
    clock.now += FAILED_S
    assert engine.scheduler.matched_tokens(Request("d", TOKENS), 0) == CHUNKED
    assert engine.scheduler.matched_tokens(request, 0) == 0, "this request never again"
    assert engine.scheduler.take_counts()["failed_loads"] == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_load_that_has_failed_is_a_miss_although_its_request_is_aborted(make_engine: Make, ranks: int) -> None:
    engine = make_engine(ranks)
    engine.compute(Request("a", TOKENS), SOURCE, seed=3)
    request = Request("b", TOKENS)
    engine.begin_load(request, TARGET)
    plan = engine.plan()
    (load,) = plan.loads
    object.__setattr__(load, "keys", load.keys[:32] + bytes(32) + load.keys[64:])  # the second chunk is gone
    for worker in engine.workers:
        worker.begin_loads(plan)
        wait_for(lambda worker=worker: worker._loads["b"].phase.name == "ENDED", "the load fails")  # type: ignore[misc]
    engine.scheduler.finished(request)
    found = engine.run()
    assert [(each.received, each.bad_blocks) for each in found] == [({"b"}, set(TARGET[:12]))] * ranks
    assert engine.found(Request("c", TOKENS)) < CHUNKED, "others do not try at once to load what is gone"


def test_a_load_that_fails_in_a_cache_with_windows_fails_as_a_whole(engine: Step) -> None:
    """The engine has no blocks for tokens before the window at the end of the load."""
    engine.compute(Request("a", TOKENS), SOURCE, seed=3)
    engine.workers[0]._holds_blocks = False
    request = Request("b", TOKENS)
    engine.begin_load(request, [0] * 6 + list(range(20, 27)))
    plan = engine.plan()
    (load,) = plan.loads
    object.__setattr__(load, "keys", load.keys[:64] + bytes(32))  # the third chunk is gone
    (found,) = engine.end_load(engine.carry_out(plan))
    assert (found.received, found.failed, found.bad_blocks) == ({"b"}, {"b"}, set())


def test_a_request_that_loads_again_after_a_preemption_has_loaded_its_tokens_once(make_engine: Make) -> None:
    engine = make_engine(step_load_s=0)
    engine.compute(Request("a", TOKENS), SOURCE, seed=3)
    request = Request("b", TOKENS)
    for blocks in (TARGET, list(range(14, 27))):
        assert engine.load(request, blocks)[0] == CHUNKED
    fields = {"loaded_tokens": CHUNKED, "missed_tokens": 0, "loaded_from": {"host": CHUNKED}}
    assert engine.scheduler.finished(request) == (False, {"larder": fields})


def test_a_load_that_could_not_be_planned_fails(engine: Step) -> None:
    engine.compute(Request("a", TOKENS), SOURCE, seed=3)
    request = Request("b", TOKENS)
    tokens = engine.found(request)
    with pytest.raises(TypeError):
        engine.scheduler.allocated(request, None, tokens)  # type: ignore[arg-type]
    engine.scheduler.give_up(request, [[20, 21, 22]], tokens)
    (found,) = engine.end_load(engine.run())
    assert (found.received, found.failed, found.bad_blocks) == ({"b"}, set(), {20, 21, 22})


def test_every_job_of_a_step_ends_although_the_device_fails(engine: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.compute(Request("a", TOKENS), SOURCE, seed=3)
    requests = [Request("b", TOKENS), Request("c", TOKENS), Request("d", [9, *TOKENS])]
    for request in requests[:2]:
        engine.scheduler.allocated(request, [[]], engine.found(request))
    engine.track(requests[2], SOURCE)

    def fail() -> None:
        raise RuntimeError("not a DeviceError")

    monkeypatch.setattr(engine.workers[0]._copies[0], "mark", fail)
    received = set(engine.run({"d": 201})[0].received)
    deadline = time.monotonic() + 90
    while (received != {"b", "c"} or engine.workers[0]._saves) and time.monotonic() < deadline:
        received |= engine.run()[0].received
    assert received == {"b", "c"}
    assert engine.workers[0]._saves == {}


def test_a_late_load_fails_and_writes_nothing_more(make_engine: Make, clock: Clock) -> None:
    engine = make_engine(load_timeout_s=2.0)
    engine.compute(Request("a", TOKENS), SOURCE, seed=4)
    gate = threading.Event()
    engine.workers[0]._queues[0].put(lambda: _wait(gate))
    try:
        target = list(range(20, 33))
        request = Request("b", TOKENS)
        engine.begin_load(request, target)
        (found,) = engine.run()
        assert not found.received
        clock.now += 2.0
        (found,) = engine.run()
        assert (found.received, found.bad_blocks) == ({"b"}, set(target[:12]))
    finally:
        gate.set()
    assert engine.load(Request("c", TOKENS[:100]), list(range(34, 41)))[0] == 0, "its chunks count as misses"
    clock.now += FAILED_S
    assert engine.load(Request("d", TOKENS[:100]), list(range(34, 41)))[0] == 64, "the thread works again"
    assert not any(tensor.any() for block in engine.caches[0].read(target) for tensor in block)
    assert engine.workers[0].take_counts()["late_loads"] == 1


def test_an_overdue_load_ends_by_itself_so_that_the_step_in_which_it_ends_reports_it(
    make_engine: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(load_timeout_s=2.0)
    engine.compute(Request("a", TOKENS), SOURCE, seed=4)
    pages = engine.caches[0].copies._pages
    scatter = pages.scatter

    def slow(*args: Any) -> None:
        scatter(*args)
        clock.now += 1.5

    monkeypatch.setattr(pages, "scatter", slow)
    engine.begin_load(Request("b", TOKENS), TARGET)
    worker, plan = engine.workers[0], engine.plan()
    worker.begin_loads(plan)
    wait_for(lambda: worker._loads["b"].phase.name == "ENDED", "the load ends")
    (found,) = engine.carry_out(StepPlan())
    assert (found.received, found.bad_blocks) == ({"b"}, set(TARGET[8:12]))
    assert worker.take_counts()["late_loads"] == 1
    assert engine.found(Request("c", TOKENS)) == 0, "a late load is a miss of all its chunks"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("begun", [False, True], ids=["waiting", "copying"])
@pytest.mark.parametrize("how", ["aborted", "reset"])
def test_loads_under_way_end_when_their_request_is_aborted_and_when_the_cache_is_reset(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch, ranks: int, begun: bool, how: str
) -> None:
    engine = make_engine(ranks)
    engine.compute(Request("a", TOKENS), SOURCE, seed=4)
    gate, reached = threading.Event(), threading.Semaphore(0)
    run_load = WorkerSide._load

    def delayed(self: WorkerSide, job: Any) -> int | None:
        reached.release()
        _wait(gate)
        return run_load(self, job)

    monkeypatch.setattr(WorkerSide, "_load", delayed)
    if not begun:
        for worker in engine.workers:
            worker._queues[0].put(lambda: _wait(gate))
    target = list(range(20, 33))
    request = Request("b", TOKENS)
    engine.begin_load(request, target)
    assert not any(found.received for found in engine.run())
    for _ in range(ranks if begun else 0):
        assert reached.acquire(timeout=60)
    if how == "aborted":
        assert engine.scheduler.finished(request) == (False, None)
    else:
        assert engine.scheduler.reset()
    found = {at: each for at, each in enumerate(engine.run()) if each.received}
    assert len(found) == (0 if begun else ranks), "a running copy ends first"
    gate.set()

    def ended() -> bool:
        found.update({at: each for at, each in enumerate(engine.run()) if each.received})
        return len(found) == ranks

    wait_for(ended, "the loads end")
    for each in found.values():
        assert (each.received, each.bad_blocks) == ({"b"}, set(target[:12]))
    assert not any(each.received for each in engine.run()), "reported once: twice would end the engine"
    for worker in engine.workers:
        counts = worker.take_counts()
        assert counts["cancelled_loads"] == 1
        assert not {"late_loads", "lost_loads"} & counts.keys()
    assert not engine.scheduler.copying()
    monkeypatch.setattr(WorkerSide, "_load", run_load)
    assert engine.load(Request("c", TOKENS), list(range(34, 47)))[0] == (CHUNKED if how == "aborted" else 0)


def test_blocks_of_a_finished_request_stay_until_they_are_saved(engine: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    engine.workers[0]._queues[1].put(lambda: _wait(gate))
    request, short = Request("a", TOKENS), Request("b", TOKENS[:10])
    for each in (request, short):
        engine.track(each, SOURCE)
    engine.run({"a": 200, "b": 10})
    assert engine.scheduler.finished(short) == (False, None)
    assert engine.scheduler.finished(request) == (True, None)
    engine.run()
    assert engine.sent == set()
    gate.set()
    wait_for(lambda: engine.run() and engine.sent == {"a"}, "the save ends")
    assert [each.sent for each in engine.run()] == [set()], "reported once: twice would end the engine"


@pytest.mark.parametrize("aborted", [False, True], ids=["runs again", "aborted before the next step"])
def test_a_preempted_request_is_not_saved_further(engine: Step, monkeypatch: pytest.MonkeyPatch, aborted: bool) -> None:
    """The next step overwrites the blocks: a running save ends before it, and a waiting save never begins. vLLM may
    preempt between two steps, when it resets its cache."""
    reached, go_on = threading.Event(), threading.Event()
    array = Reservation.array

    def slow(self: Reservation, i: int) -> Any:
        reached.set()
        go_on.wait(60)
        return array(self, i)

    monkeypatch.setattr(Reservation, "array", slow)
    running, waiting = Request("a", TOKENS), Request("b", [9, *TOKENS])
    for each in (running, waiting):
        engine.track(each, SOURCE)
    engine.run({"a": 200, "b": 201})
    assert reached.wait(60)
    if aborted:
        assert engine.scheduler.finished(running)[0]
        assert engine.scheduler.finished(waiting)[0]
    plan = engine.plan(preempted=("a", "b", "unknown"))
    carried_out = threading.Thread(target=engine.carry_out, args=(plan,))
    carried_out.start()
    carried_out.join(0.2)
    assert carried_out.is_alive(), "it waits for the save that runs"
    go_on.set()
    carried_out.join(60)
    assert engine.workers[0]._saves == {}
    for each in (running, waiting):
        wait_for(lambda each=each: not engine.lookup(each).writing, "what was reserved is given up")  # type: ignore[misc]
        assert engine.found(Request("x" + each.request_id, each.all_token_ids)) == 0
    if aborted:
        assert engine.sent == {"a", "b"}, "the blocks are released"
        return
    engine.run({"a": 200})
    wait_for(lambda: engine.run() and engine.lookup(running).ready == 3, "computed again, it is saved again")


def test_saves_beyond_the_bound_are_dropped_and_counted(engine: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.workers[0], "_settings", ConnectorSettings(pending_save_bytes=1 << 20))
    engine.workers[0]._pending_save_bytes = (1 << 20) - 1
    request = Request("a", TOKENS)
    engine.track(request, SOURCE)
    engine.run({"a": 200})
    assert engine.workers[0].take_counts() == {"dropped_saves": 1}
    assert engine.scheduler.finished(request) == (False, None), "nothing waits for it"


@pytest.mark.parametrize("batch_bytes", [1, 1 << 30], ids=["a chunk at a time", "a step at a time"])
@pytest.mark.parametrize("counts", [[200], [70, 70, 60]], ids=["one step", "three steps"])
def test_an_invalidation_reaches_all_chunks_behind_a_prefix_however_they_were_saved(
    engine: Step, plane: Plane, monkeypatch: pytest.MonkeyPatch, counts: list[int], batch_bytes: int
) -> None:
    monkeypatch.setattr("dataplane.engines.vllm.worker.BATCH_BYTES", batch_bytes)
    request = Request("a", TOKENS)
    engine.track(request, SOURCE)
    engine.scheduler.allocated(request, [SOURCE], 0)
    for count in counts:
        engine.run({"a": count})
        request.num_computed_tokens += count
    engine.finish(request)
    first, *others = RequestKeys(request, CHUNK_TOKENS).extend(request, CHUNKED)
    with plane.manager() as manager:
        assert manager.ask(Invalidate("n", Scope(keys=first))).blocks == 3
    client = engine.scheduler._client
    assert client is not None
    assert [client.lookup([key], counted=False) for key in others] == [0, 0]


def test_a_request_is_one_record_of_the_trace_however_it_is_loaded_and_saved(
    engine: Step, make_engine: Make, plane: Plane
) -> None:
    engine.compute(Request("a", TOKENS), SOURCE, seed=6)
    engine = make_engine()
    request = Request("b", [*TOKENS, *range(5000, 5150)], kv_transfer_params={"larder.pin": 60})
    blocks = list(range(1, 30))
    tokens, _ = engine.load(request, blocks, local=CHUNK_TOKENS)
    request.num_computed_tokens = CHUNK_TOKENS + tokens
    while left := request.num_tokens - request.num_computed_tokens:
        engine.run({"b": min(80, left)})
        request.num_computed_tokens += min(80, left)
    engine.finish(request)
    with plane.manager() as manager:
        lines = [msgspec.json.decode(line) for line in manager.ask(Trace("n", 0.0, 0)).lines.splitlines()]
    assert [(len(line["hash_ids"]), line["hit_blocks"]) for line in lines] == [(3, 0), (5, 3)]
    assert lines[1]["hash_ids"][:3] == lines[0]["hash_ids"], "the chunk that the engine has itself is in its place"


def test_only_known_tokens_of_whole_chunks_are_saved(make_engine: Make) -> None:
    engine = make_engine()
    request = Request("a", TOKENS[:100])
    engine.track(request, SOURCE)

    def planned(count: int) -> int:
        plan = engine.plan({"a": count})
        request.num_computed_tokens += count
        return sum(len(each.keys) // 32 for each in plan.saves)

    assert [planned(60), planned(10), planned(30)] == [0, 1, 0]
    request.all_token_ids += TOKENS[100:140]
    assert planned(40) == 0, "generated tokens are saved by setting only"
    engine = make_engine(save_decode=True)
    request = Request("b", TOKENS[:100])
    engine.track(request, SOURCE)
    plan = engine.plan({"b": 190})
    assert sum(len(each.keys) // 32 for each in plan.saves) == 1, "drafts of unknown tokens are not"
    request.num_computed_tokens = 100
    request.all_token_ids += TOKENS[100:140]
    plan = engine.plan({"b": 40})
    assert sum(len(each.keys) // 32 for each in plan.saves) == 1


@pytest.mark.parametrize(
    ("fields", "local", "scheduled", "expected"),
    [
        pytest.param({}, 0, CHUNKED, (1, 200, CHUNKED, 0, 3, 3), id="loaded"),
        pytest.param({}, 64, CHUNKED - 64, (1, 136, CHUNKED - 64, 0, 3, 3), id="loaded after the engine's own blocks"),
        pytest.param({}, CHUNKED, 0, (1, 8, 0, 0, 3, 3), id="in the engine's own cache"),
        pytest.param({}, 0, None, (0, 0, 0, 0, 0, 0), id="aborted before it is scheduled"),
        pytest.param({}, 0, 0, (1, 200, 0, CHUNKED, 3, 0), id="vLLM loads nothing"),
        pytest.param({"skip_reading_prefix_cache": True}, 0, 0, (0, 0, 0, 0, 0, 0), id="prompt_logprobs"),
        pytest.param({"kv_transfer_params": {"larder.skip_load": True}}, 0, 0, (0, 0, 0, 0, 0, 0), id="skip_load"),
    ],
)
def test_only_what_is_used_counts_as_a_hit(
    engine: Step, plane: Plane, fields: dict[str, Any], local: int, scheduled: int | None, expected: tuple[int, ...]
) -> None:
    engine.compute(Request("a", TOKENS, "acme"), SOURCE, seed=5)
    engine.scheduler.take_counts()
    request = Request("b", TOKENS, "acme", **fields)
    for _ in range(5):
        engine.scheduler.matched_tokens(request, local)
    if scheduled is not None:
        engine.scheduler.allocated(request, [SOURCE], scheduled)
        engine.scheduler.allocated(request, [SOURCE], 0)
    for _ in range(2):  # it is preempted
        engine.scheduler.matched_tokens(request, 0)
        if scheduled is not None:
            engine.scheduler.allocated(request, [SOURCE], CHUNKED if scheduled else 0)
    counts = engine.scheduler.take_counts()
    names = ("lookups", "lookup_tokens", "hit_tokens", "recomputed_tokens")
    assert tuple(counts.get(name, 0) for name in names) == expected[:4]
    last = Request("c", [9] * 64, "last")  # the data plane reads counts in order
    engine.scheduler.matched_tokens(last, 0)
    engine.scheduler.allocated(last, [SOURCE], 0)
    stats = plane.wait_stats(lambda stats: stats.totals.requested_blocks >= 3 + expected[4] + 1, "it is counted")
    assert (stats.totals.requested_blocks, stats.totals.hit_blocks) == (3 + expected[4] + 1, expected[5])


def test_a_prefix_that_is_computed_because_it_is_faster_is_no_hit(make_engine: Make, plane: Plane) -> None:
    engine = make_engine(min_load_tokens=1000)
    engine.compute(Request("a", TOKENS, "acme"), SOURCE, seed=5)
    engine.compute(Request("b", TOKENS, "acme"), SOURCE, seed=5)
    counts = engine.scheduler.take_counts()
    assert (counts["lookups"], counts["hit_tokens"], counts["recomputed_tokens"]) == (2, 0, CHUNKED)
    stats = plane.wait_stats(lambda stats: stats.totals.requested_blocks >= 6, "look-ups are counted")
    assert stats.totals.hit_blocks == 0
    request = Request("c", TOKENS, "acme")
    assert engine.found(request) == 0
    engine.scheduler.allocated(request, [SOURCE], 0)
    assert engine.scheduler.finished(request)[1] == {
        "larder": {"loaded_tokens": 0, "missed_tokens": CHUNKED, "reason": "recompute_faster"}
    }


def test_a_request_that_skips_reading_reports_what_it_did_not_use(engine: Step) -> None:
    engine.compute(Request("a", TOKENS), SOURCE, seed=5)
    request = Request("b", TOKENS, skip_reading_prefix_cache=True)
    engine.found(request)
    engine.scheduler.allocated(request, [SOURCE], 0)
    assert engine.scheduler.finished(request)[1] == {
        "larder": {"loaded_tokens": 0, "missed_tokens": CHUNKED, "reason": "not_used"}
    }


@pytest.mark.parametrize("salt", ["a/b", "_default", "\ud800", "x" * 129, "x" * (1 << 20)])
def test_the_report_of_a_request_with_a_wrong_salt_costs_no_other_request_anything(
    engine: Step, plane: Plane, salt: str
) -> None:
    client = engine.scheduler._client
    assert client is not None
    request = Request("a", TOKENS, salt)
    assert engine.found(request) == 0
    engine.scheduler.allocated(request, [SOURCE], 0)
    (reason,) = [(fields or {})["larder"]["reason"] for _, fields in [engine.scheduler.finished(request)]]
    assert reason == "unkeyed"
    assert client.connected
    engine.compute(Request("b", TOKENS), SOURCE, seed=5)
    assert engine.found(Request("c", TOKENS)) == CHUNKED
    with plane.manager() as manager:
        found: RequestsFound = manager.ask(FindRequests("n", "a"))
    assert [(each.tenant, each.reason, each.missed_tokens) for each in found.requests] == [("", "unkeyed", CHUNKED)]


HOSTILE = "\n\r\x1b[31m\x9b\u2028forged"


def test_no_text_of_a_request_forges_lines_of_the_log(make_engine: Make, caplog: pytest.LogCaptureFixture) -> None:
    hostile_action = SimpleNamespace(action_type=f"larder.{HOSTILE}", payload=HOSTILE)
    for fields in (
        {"kv_transfer_params": {f"larder.{HOSTILE}": 1}},
        {"kv_transfer_params": {"larder.ttl": HOSTILE}},
        {"kv_hints": SimpleNamespace(actions=[hostile_action])},
        {"cache_salt": HOSTILE},
        {"mm_features": [image("cat", 1, 9, identifier=HOSTILE, modality="image")]},
        {"lora_request": lora(HOSTILE, HOSTILE)},
    ):
        engine = make_engine()
        caplog.clear()
        for each in (fields, {name: value for name, value in fields.items() if name != "cache_salt"}):
            engine.scheduler.matched_tokens(Request(HOSTILE + str(len(each)), TOKENS, **each), 0)
        lines = [record.getMessage() for record in caplog.records if record.name == "larder.vllm"]
        assert lines
        assert all(line.isprintable() and len(line) < 1400 for line in lines)


def test_a_request_waits_until_the_files_of_its_adapter_are_read(engine: Step, tmp_path: Path) -> None:
    adapter = lora(write_adapter(tmp_path / "a", 1))
    request = Request("a", TOKENS, lora_request=adapter)
    assert engine.scheduler.matched_tokens(request, 0) is None
    wait_for(lambda: engine.scheduler.matched_tokens(request, 0) == 0, "the files are read")
    engine.compute(request, SOURCE, seed=1)
    assert engine.scheduler.matched_tokens(Request("b", TOKENS), 0) == 0
    assert engine.load(Request("c", TOKENS, lora_request=adapter), SOURCE)[0] == CHUNKED
    running = Request("d", TOKENS[::-1], lora_request=adapter)
    assert engine.track(running, SOURCE) == 0
    write_adapter(tmp_path / "a", 2)
    wait_for(lambda: engine.scheduler.matched_tokens(Request("e", TOKENS, lora_request=adapter), 0) == 0, "it is seen")
    assert not engine.plan({"d": 200}).saves
    assert engine.scheduler.take_counts()["unkeyed_requests:adapter"] == 2


def test_a_request_waits_for_its_adapter_for_a_bounded_time(
    engine: Step, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr("dataplane.engines.vllm.adapters.digest_of", lambda files: release.wait(60) and "digest")
    adapter = lora(write_adapter(tmp_path / "a", 1))
    request = Request("a", TOKENS, lora_request=adapter)
    assert engine.track(request, SOURCE) is None
    clock.now += ADAPTER_WAIT_S
    assert engine.scheduler.matched_tokens(request, 0) == 0
    assert not engine.plan({"a": 200}).saves
    release.set()
    request.num_computed_tokens = 200
    wait_for(lambda: engine.plan({"a": 0}).saves, "its chunks are saved later")


def test_hints_salts_and_resets(engine: Step) -> None:
    engine.compute(Request("a", TOKENS, kv_transfer_params={"larder.skip_save": True}), SOURCE, seed=6)
    assert engine.scheduler.matched_tokens(Request("b", TOKENS), 0) == 0
    engine.compute(Request("c", TOKENS), SOURCE, seed=6)
    assert engine.scheduler.matched_tokens(Request("d", TOKENS), 0) == CHUNKED
    for params in ({"larder.skip_load": True}, "no mapping", ["neither"]):
        known = engine.scheduler.matched_tokens(Request(f"e{params}", TOKENS, kv_transfer_params=params), 0)
        assert known == (0 if isinstance(params, dict) else CHUNKED)
    assert engine.scheduler.matched_tokens(Request("f", TOKENS, "a/b"), 0) == 0
    assert engine.scheduler.matched_tokens(Request("g", TOKENS, resumable=True), 0) == 0
    assert engine.scheduler.take_counts()["unkeyed_requests:salt"] == 1
    assert engine.scheduler.reset()
    assert engine.scheduler.matched_tokens(Request("h", TOKENS), 0) == 0
    assert engine.scheduler.matched_tokens(Request("d", TOKENS), 0) == 0


def test_new_weights_end_the_loads_under_way_and_all_saves(make_engine: Make) -> None:
    engine = make_engine(ranks=2)
    engine.compute(Request("a", TOKENS), SOURCE, seed=6)
    load, save = Request("b", TOKENS), Request("c", TOKENS[::-1])
    engine.begin_load(load, list(range(20, 33)))
    assert engine.track(save, list(range(33, 46))) == 0
    engine.scheduler.reset()
    plan = engine.plan({"c": len(TOKENS)})
    assert (plan.dropped_loads, plan.saves) == (["b"], [])
    found = engine.carry_out(plan)
    assert [(each.received, len(each.bad_blocks)) for each in found] == [({"b"}, 12)] * 2
    assert engine.scheduler.finished(save) == (False, None), "no save is under way"
    for tokens in (TOKENS, TOKENS[::-1]):
        assert engine.found(Request(f"again {tokens[0]}", tokens)) == 0
    engine.compute(Request("d", TOKENS), SOURCE, seed=7)
    assert engine.found(Request("e", TOKENS)) == CHUNKED


def test_workers_with_different_weights_are_refused(make_engine: Make) -> None:
    engine = make_engine(ranks=2)
    layouts = [each.copies.layout for each in engine.caches]
    space = msgspec.structs.replace(layouts[1].space, revision="weights-2")
    with pytest.raises(ValueError, match="the workers have loaded different weights"):
        engine.scheduler.workers_ready([[layouts[0]], [GroupLayout(space, layouts[1].page_tokens)]])


def test_hints_reach_the_data_plane(make_engine: Make, plane: Plane) -> None:
    engine = make_engine(ranks=2)
    engine.compute(Request("a", TOKENS, kv_transfer_params={"larder.ttl": 600, "larder.pin": 60}), SOURCE, seed=6)
    stats = plane.wait_stats(lambda stats: stats.totals.hinted_pin_blocks >= 6, "the pins are applied")
    assert (stats.totals.hinted_ttl_blocks, stats.totals.hinted_pin_blocks) == (6, 6)
    assert stats.pool.hinted_bytes == stats.pool.used_bytes > 0
    assert "ignored_hints" not in engine.scheduler.take_counts()


def test_a_pin_applies_to_chunks_that_another_request_stored(engine: Step, plane: Plane) -> None:
    engine.compute(Request("a", TOKENS), SOURCE, seed=6)
    action = SimpleNamespace(action_type="larder.pin", payload={"seconds": 60})
    request = Request("b", TOKENS, kv_hints=SimpleNamespace(actions=[action]))
    engine.compute(request, list(range(14, 27)), seed=6)
    stats = plane.wait_stats(lambda stats: stats.totals.hinted_pin_blocks >= 3, "the pins are applied")
    assert (stats.totals.hinted_pin_blocks, stats.totals.stored_blocks) == (3, 3)


def sessions_of(plane: Plane) -> list[SessionState]:
    with plane.manager() as manager:
        found: SessionsListed = manager.ask(ListSessions("n"))
    return found.sessions


def test_the_session_of_a_request_reaches_the_data_plane(make_engine: Make, plane: Plane) -> None:
    engine = make_engine(ranks=2)
    engine.compute(Request("a", TOKENS, kv_transfer_params={"larder.session": "talk"}), SOURCE, seed=6)
    plane.wait_stats(lambda stats: stats.totals.stored_blocks >= 6, "the blocks are stored")
    (state,) = sessions_of(plane)
    assert (state.session, state.tenant, state.chunks) == ("talk", "", 3)
    assert state.bytes["memory"] == state.private_bytes > 0
    assert "ignored_hints" not in engine.scheduler.take_counts()


def test_a_request_that_stores_nothing_names_its_session(engine: Step, plane: Plane) -> None:
    engine.compute(Request("a", TOKENS), SOURCE, seed=6)
    action = SimpleNamespace(action_type="larder.session", payload={"name": "reader"})
    request = Request("b", TOKENS, kv_hints=SimpleNamespace(actions=[action]))
    engine.compute(request, list(range(14, 27)), seed=6)
    plane.wait_stats(lambda stats: stats.pool.sessions, "the session is known")
    (state,) = sessions_of(plane)
    assert (state.session, state.chunks, state.private_bytes) == ("reader", 3, 0)


def test_vllms_session_id_names_the_session_of_requests_that_name_none(engine: Step, plane: Plane) -> None:
    given = {"larder.session": "named"}
    engine.compute(Request("a", TOKENS, session_id="id", kv_transfer_params=given), SOURCE, seed=6)
    for request_id, session_id in (("b", "id"), ("c", "a b"), ("d", "x" * (1 << 20)), ("e", 7)):
        engine.compute(Request(request_id, TOKENS, session_id=session_id), list(range(14, 27)), seed=6)
    plane.wait_stats(lambda stats: stats.pool.sessions >= 2, "both sessions are known")
    assert {state.session for state in sessions_of(plane)} == {"named", "id"}
    assert "ignored_hints" not in engine.scheduler.take_counts()


@pytest.mark.parametrize("name", ["", "a b", "x" * (1 << 20), 7, None, True, ["talk"], {"name": "talk"}])
def test_a_wrong_name_of_a_session_is_ignored_and_counted(
    engine: Step, plane: Plane, caplog: pytest.LogCaptureFixture, name: object
) -> None:
    engine.compute(Request("a", TOKENS, kv_transfer_params={"larder.session": name}), SOURCE, seed=6)
    assert engine.scheduler.take_counts()["ignored_hints"] == 1
    (line,) = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert "larder.session: expected 1 to 64 of the characters" in line
    assert len(line) < 400
    plane.wait_stats(lambda stats: stats.totals.stored_blocks >= 3, "the blocks are stored")
    assert sessions_of(plane) == []


def test_wrong_hints_are_ignored_and_counted(make_engine: Make, caplog: pytest.LogCaptureFixture) -> None:
    for at, value in enumerate((-1, 0, "60", True, math.nan, math.inf, 10**30, 10**5000, None, [1], {"s": 1})):
        engine, tokens = make_engine(), [at, *TOKENS]
        caplog.clear()
        params = {"larder.ttl": value, "larder.pin": value, "larder.tll": 1}
        engine.compute(Request("a", tokens, kv_transfer_params=params), SOURCE, seed=6)
        assert engine.scheduler.take_counts()["ignored_hints"] == 3
        assert engine.scheduler.matched_tokens(Request("b", tokens), 0) == CHUNKED
        (line,) = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
        assert "larder.ttl: expected seconds, above 0 and at most 31622400, got" in line
        assert len(line) < 1200


@pytest.mark.parametrize("value", ["false", "", None, 2, -1, 0.0, [], {"a": 1}, 10**30])
@pytest.mark.parametrize("switch", ["skip_load", "skip_save"])
def test_a_switch_that_is_neither_on_nor_off_is_ignored_and_counted(
    engine: Step, caplog: pytest.LogCaptureFixture, switch: str, value: object
) -> None:
    engine.compute(Request("a", TOKENS, kv_transfer_params={f"larder.{switch}": value}), SOURCE, seed=6)
    assert engine.scheduler.take_counts()["ignored_hints"] == 1
    (line,) = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert f"larder.{switch}: expected true or false, got " in line
    assert engine.found(Request("b", TOKENS, kv_transfer_params={"larder.skip_load": 0})) == CHUNKED
    assert engine.found(Request("c", TOKENS, kv_transfer_params={"larder.skip_load": 1})) == 0


def test_options_are_read_behind_any_number_of_fields_of_other_connectors(engine: Step) -> None:
    engine.compute(Request("a", TOKENS), SOURCE, seed=6)
    foreign = {f"remote_{at}": [at] for at in range(1000)}
    request = Request("b", TOKENS, kv_transfer_params={**foreign, 7: 1, "larder": {"ttl": 1}, "larder.skip_load": True})
    assert engine.found(request) == 0
    assert "ignored_hints" not in engine.scheduler.take_counts()


def test_a_data_plane_that_takes_no_hints_stores_the_blocks(make_plane: Callable[..., Plane], clock: Clock) -> None:
    plane = make_plane(dataplane__hint_max_s="0").start()
    engine = Step(plane, [cache(0, 0, 1)], clock)
    try:
        params = {"larder.ttl": 1, "larder.pin": 60}
        engine.compute(Request("a", TOKENS, kv_transfer_params=params), SOURCE, seed=6)
        assert engine.scheduler.take_counts()["ignored_hints"] == 2
        stats = plane.wait_stats(lambda stats: stats.totals.stored_blocks >= 3, "the blocks are stored")
        assert (stats.totals.hinted_ttl_blocks, stats.totals.hinted_pin_blocks) == (0, 0)
    finally:
        engine.close()


def test_a_pause_waits_for_copies_but_not_for_reports_that_never_come(engine: Step, clock: Clock) -> None:
    gate = threading.Event()
    engine.workers[0]._queues[1].put(lambda: _wait(gate))
    request = Request("a", TOKENS)
    engine.track(request, SOURCE)
    assert not engine.scheduler.copying()
    engine.run({"a": request.num_tokens})
    assert engine.scheduler.copying()
    clock.now += 100
    assert not engine.scheduler.copying()
    clock.now -= 100
    gate.set()
    wait_for(lambda: engine.run() and not engine.scheduler.copying(), "the save ends")
    engine.scheduler.matched_tokens(other := Request("b", TOKENS), 0)
    engine.scheduler.allocated(other, [list(range(14, 27))], CHUNKED)
    assert engine.scheduler.copying()
    wait_for(lambda: engine.run() and not engine.scheduler.copying(), "the load ends")


def test_a_worker_with_unopenable_memory_leaves_no_connection(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DeviceError("open", "no device")

    monkeypatch.setattr(CpuCopies, "open", refuse)
    with pytest.raises(DeviceError):
        WorkerSide(ConnectorSettings(socket=plane.socket), [cache().copies], group="g", engine="worker")
    plane.wait_stats(lambda stats: not stats.engines, "the engine is detached")


def test_steps_that_are_planned_ahead_are_timed_one_by_one(engine: Step, clock: Clock) -> None:
    request = Request("a", list(range(1000)))
    engine.track(request, list(range(1, 64)))
    steps = []
    for _ in range(3):
        steps.append(engine.scheduler.plan({"a": 100}, lambda name: None).step)
        assert engine.plan().step == 0, "vLLM may not report it"
    for step in steps:
        clock.now += 1.0
        engine.scheduler.stepped(StepReport(step=step), ())
    assert engine.scheduler._break_even.prefill_rate == 100.0
    assert not engine.scheduler._steps


def test_an_abort_during_a_load_keeps_the_lease_until_the_load_ends(engine: Step) -> None:
    engine.compute(Request("a", TOKENS), SOURCE, seed=8)
    request = Request("b", TOKENS)
    engine.begin_load(request, list(range(20, 33)))
    plan = engine.plan()
    assert engine.scheduler.finished(request) == (False, None), "the load keeps the blocks"
    assert len(engine.scheduler._reads["b"].lease) == 3
    engine.end_load(engine.carry_out(plan))
    assert engine.scheduler._reads == {}


def test_a_request_with_a_failed_load_does_not_wait_for_its_saves(make_engine: Make) -> None:
    """vLLM frees the blocks when all ranks have ended the load; to free them after the saves as well would end it."""
    engine = make_engine(2)
    engine.compute(Request("a", TOKENS), SOURCE, seed=8)
    request = Request("b", TOKENS)
    engine.begin_load(request, list(range(20, 33)))
    engine.scheduler._tracked["b"].saves_open = 1
    engine.scheduler.stepped(StepReport(loads_failed={"b": 0}), ())
    waits, fields = engine.scheduler.finished(request)
    assert (waits, (fields or {})["larder"]) == (
        False, {"loaded_tokens": 0, "missed_tokens": CHUNKED, "reason": "load_failed"}
    )  # fmt: skip


@pytest.mark.parametrize("overwritten", [False, True])
def test_a_step_waits_a_bounded_time_for_a_save_that_hangs_and_it_is_not_published(
    engine: Step, plane: Plane, monkeypatch: pytest.MonkeyPatch, overwritten: bool
) -> None:
    """The bound is reached as soon as the first save has copied its blocks."""
    side, pages, go_on = engine.workers[0], engine.caches[0].copies._pages, threading.Event()
    side._holds_blocks = overwritten
    gather, wait_until = pages.gather, side._lock.wait_for
    copied: list[object] = []
    woken: list[bool] = []

    def hang(*args: Any) -> None:
        gather(*args)
        with side._lock:
            copied.append(args)
            side._lock.notify_all()
        woken.append(go_on.wait(60))

    def wait_until_copied(ended: Callable[[], bool], timeout: float) -> bool:
        assert wait_until(lambda: ended() or copied, 60)
        return ended()

    try:
        with monkeypatch.context() as patched:
            patched.setattr(pages, "gather", hang)
            patched.setattr(side._lock, "wait_for", wait_until_copied)
            engine.track(Request("a", TOKENS[:CHUNK_TOKENS]), SOURCE)
            engine.run({"a": CHUNK_TOKENS})
            wait_for(lambda: copied, "the save hangs")
            engine.track(Request("b", TOKENS[1:]), TARGET)
            engine.run({"b": len(TOKENS) - 1}, preempted=("a",) if overwritten else ())
            side.begin_saves(StepPlan(saves=[Save("pinned", bytes(KEY_BYTES), "", (), pin_s=60.0)]))
            assert len(copied) == 1
    finally:
        go_on.set()
    assert side.take_counts().get("dropped_saves", 0) == (not overwritten)
    wait_for(lambda: not side._saves and not plane.describe().pool.reserved_bytes, "the copies end")
    assert woken == [True], "the steps did not wait for it"
    assert engine.found(Request("c", TOKENS)) == 0
    engine.compute(Request("d", TOKENS), SOURCE, seed=1)
    assert engine.found(Request("e", TOKENS)) == CHUNKED


def test_a_step_waits_for_slow_saves_as_long_as_one_ends_after_another(
    engine: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of the first wait is reached as soon as the second save copies."""
    side, pages = engine.workers[0], engine.caches[0].copies._pages
    side._holds_blocks = False
    gather, wait_until = pages.gather, side._lock.wait_for
    begun = [threading.Event(), threading.Event()]
    copies: list[object] = []

    def slow(*args: Any) -> None:
        with side._lock:
            copies.append(args)
            side._lock.notify_all()
        assert begun[len(copies) - 1].wait(60)
        gather(*args)

    def wait_for_one(ended: Callable[[], bool], timeout: float) -> bool:
        if timeout == SAVE_WAIT_S:
            at = sum(each.is_set() for each in begun)
            begun[at].set()
            assert wait_until(lambda: ended() or (at == 0 and len(copies) == 2), 60)
            return ended()
        return wait_until(ended, 60)

    for name in ("a", "b"):
        engine.track(Request(name, [*TOKENS[: CHUNK_TOKENS - 1], ord(name)]), SOURCE)
    plan = engine.plan(dict.fromkeys("ab", CHUNK_TOKENS))
    try:
        with monkeypatch.context() as patched:
            patched.setattr(pages, "gather", slow)
            patched.setattr(side._lock, "wait_for", wait_for_one)
            side.begin_saves(plan)
    finally:
        for each in begun:
            each.set()
    assert side.take_counts()["saved_blocks"] == 2


def test_without_a_data_plane_nothing_is_found_and_nothing_waits(engine: Step, plane: Plane) -> None:
    plane.kill()
    request = Request("a", TOKENS)
    engine.compute(request, SOURCE, seed=9)
    assert engine.workers[0].take_counts()["refused_blocks:unavailable"] == 3
    plane.start()

    def stored_and_found() -> bool:
        engine.compute(Request("b", TOKENS), SOURCE, seed=9)
        return engine.scheduler.matched_tokens(Request(f"c{time.monotonic()}", TOKENS), 0) == CHUNKED

    wait_for(stored_and_found, "both sides attach again")


def test_an_idle_engine_attaches_to_the_next_data_plane(engine: Step, plane: Plane) -> None:
    plane.kill()
    plane.start()
    sides = [engine.scheduler._client, engine.workers[0]._client]
    wait_for(lambda: all(client and client._link.attachments == 2 for client in sides), "both sides attach")
    engine.compute(Request("a", TOKENS), SOURCE, seed=1)
    assert engine.scheduler.matched_tokens(Request("b", TOKENS), 0) == CHUNKED, "nothing was refused"


def test_an_engine_with_blocks_that_do_not_divide_chunks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"larder\.chunk_tokens: expected a multiple of the block size 48, got 64"):
        SchedulerSide(
            ConnectorSettings(chunk_tokens=64), group="g", engine="e", block_tokens=48, evict=lambda blocks: None
        )
