"""Hand-offs between engines on a real data plane, without vLLM: requests wait for chunks that another engine writes,
and for the workers' KV-cache groups; another connector beside Larder's changes neither."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dataplane.client.client import Client
from dataplane.client.reservations import CommitResult, Reservation
from dataplane.engines.vllm import worker
from dataplane.engines.vllm.messages import StepReport
from dataplane.engines.vllm.scheduler import WORKERS_WAIT_S, SchedulerSide
from dataplane.engines.vllm.settings import ConnectorSettings
from dataplane.engines.vllm.tier_waits import LOOK_AGAIN_S
from tests.clock import Clock
from tests.dataplane.plane import Plane, wait_for
from tests.engines.vllm.fakes import CHUNK_TOKENS, CHUNKED, PAGE_TOKENS, SOURCE, TOKENS, Request
from tests.engines.vllm.sides import Make, Step, engine, make_engine

__all__ = ["engine", "make_engine"]


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold back every commit until the event is set."""
    go_on = threading.Event()
    commit = Reservation.commit

    def late(self: Reservation, *args: Any, **options: Any) -> CommitResult:
        go_on.wait(60)
        return commit(self, *args, **options)

    monkeypatch.setattr(Reservation, "commit", late)
    yield go_on
    go_on.set()


def answer(engine: Step, tokens: list[int] = TOKENS) -> Request:
    """Compute the only step of a request, as a prefill engine does, and return the request when vLLM would answer."""
    request = Request("prefill", tokens)
    engine.track(request, SOURCE)
    engine.scheduler.allocated(request, [SOURCE], 0)
    engine.run({"prefill": len(tokens)})
    return request


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_chunk_that_is_being_written_is_waited_for(
    make_engine: Make, clock: Clock, commits: threading.Event, ranks: int
) -> None:
    prefill, decode = make_engine(ranks), make_engine(ranks)
    request = answer(prefill)
    assert decode.lookup(request)[:2] == (0, 0)
    assert decode.lookup(request).writing == 3, "it is reserved when the response leaves"
    asks = Request("decode", TOKENS)
    assert decode.scheduler.matched_tokens(asks, 0) is None
    assert decode.scheduler.matched_tokens(Request("other", TOKENS[::-1]), 0) == 0, "other prompts do not wait"
    assert decode.scheduler.matched_tokens(Request("local", TOKENS), CHUNKED) == 0, "nor does one that needs none of it"
    commits.set()
    wait_for(lambda: decode.lookup(request).ready == 3, "the chunks are committed")
    clock.now += LOOK_AGAIN_S
    assert decode.scheduler.matched_tokens(asks, 0) == CHUNKED
    counts = decode.scheduler.take_counts()
    assert (counts["tier_waits"], counts["tier_tokens"]) == (1, CHUNKED)
    assert "tier_waits_given_up" not in counts


@pytest.mark.parametrize("end", ["cancelled", "gone", "late"])
def test_a_wait_for_a_chunk_that_is_not_committed_ends_with_a_miss(
    make_engine: Make, plane: Plane, clock: Clock, commits: threading.Event, end: str
) -> None:
    prefill, decode = make_engine(), make_engine(tier_timeout_s=5.0)
    request, asks = answer(prefill), Request("decode", TOKENS)
    assert decode.scheduler.matched_tokens(asks, 0) is None
    clock.now += LOOK_AGAIN_S
    assert decode.scheduler.matched_tokens(asks, 0) is None
    if end == "late":
        clock.now += 5.0
    elif end == "gone":
        prefill.workers[0]._client._link.drop("the process of the writer ended")
        wait_for(lambda: not decode.lookup(request).writing, "the data plane takes back what it reserved")
    else:
        (job,) = prefill.workers[0]._saves["prefill"]
        job.reservations[0].reservation.abort()
        wait_for(lambda: not decode.lookup(request).writing, "the reservation is given up")
    clock.now += LOOK_AGAIN_S
    assert decode.scheduler.matched_tokens(asks, 0) == 0
    assert decode.scheduler.take_counts()["tier_waits_given_up"] == 1
    assert not len(decode.scheduler._tier_waits)
    assert decode.scheduler.matched_tokens(asks, 0) == 0, "a request waits once"


def test_without_a_time_to_wait_a_chunk_that_is_being_written_is_a_miss(
    make_engine: Make, commits: threading.Event
) -> None:
    prefill, decode = make_engine(), make_engine(tier_timeout_s=0.0)
    answer(prefill)
    assert decode.scheduler.matched_tokens(Request("decode", TOKENS), 0) == 0


def test_a_step_waits_once_for_a_data_plane_that_does_not_answer(engine: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RESERVE_WAIT_S", 0.01)
    go_on = threading.Event()
    reserve = Client.reserve

    def late(self: Client, *args: Any, **options: Any) -> Reservation:
        go_on.wait(60)
        return reserve(self, *args, **options)

    monkeypatch.setattr(Client, "reserve", late)
    request = answer(engine)
    assert engine.workers[0]._reserves_late
    monkeypatch.setattr(worker, "RESERVE_WAIT_S", 600.0)
    following = Request("next", TOKENS[::-1])
    engine.track(following, SOURCE)
    engine.run({"next": 200})  # would wait for ten minutes
    go_on.set()
    wait_for(lambda: engine.lookup(request).ready == engine.lookup(following).ready == 3, "both are saved")
    assert not engine.workers[0]._reserves_late


# ---- the workers' KV-cache groups


def scheduler_side(plane: Plane, clock: Clock, **options: Any) -> SchedulerSide:
    settings = ConnectorSettings(socket=plane.socket, chunk_tokens=CHUNK_TOKENS, timeout_s=5.0, min_load_tokens=0)
    return SchedulerSide(
        settings,
        group="late",
        engine="late",
        block_tokens=PAGE_TOKENS,
        evict=lambda blocks: None,
        clock=clock,
        **options,
    )


@pytest.mark.parametrize("role", ["both", "producer", "consumer"])
def test_requests_wait_for_the_groups_of_all_workers(make_engine: Make, plane: Plane, clock: Clock, role: str) -> None:
    engine = make_engine(2)
    engine.compute(Request("a", TOKENS), SOURCE, seed=1)
    late = scheduler_side(plane, clock, loads=role != "producer", saves=role != "consumer")
    request = Request("b", TOKENS)
    assert late.matched_tokens(request, 0) is None
    assert late.plan({}, lambda name: None).asks_layouts
    late.stepped(StepReport(), ())  # of a worker whose report was lost
    assert late.plan({}, lambda name: None).asks_layouts
    groups = [[each.copies.layout] for each in engine.caches]
    late.stepped(StepReport(layouts=groups[1:]).add(StepReport(layouts=groups[:1])), ())
    assert not late.plan({}, lambda name: None).asks_layouts
    assert late.matched_tokens(request, 0) == (0 if role == "producer" else CHUNKED)
    assert late._page_tokens == [PAGE_TOKENS]
    assert late._workers == 2
    late.stepped(StepReport(layouts=groups), ())  # a step that was planned before the first answer
    late.close()


@pytest.mark.parametrize("reported", ["nothing", "no group", "one of two workers"])
def test_without_usable_groups_requests_are_misses(
    make_engine: Make, plane: Plane, clock: Clock, caplog: pytest.LogCaptureFixture, reported: str
) -> None:
    engine = make_engine(2)
    late = scheduler_side(plane, clock)
    request = Request("b", TOKENS)
    assert late.matched_tokens(request, 0) is None
    if reported == "nothing":
        clock.now += WORKERS_WAIT_S
    else:
        groups = [[each.copies.layout] for each in engine.caches]
        with caplog.at_level(logging.ERROR, "larder.vllm"):
            late.stepped(StepReport(layouts=[groups[0], []] if reported == "no group" else groups[:1]), ())
        assert "Larder is not used: " in caplog.text
        assert not late.plan({}, lambda name: None).asks_layouts
    assert late.matched_tokens(request, 0) == 0
    assert not late.plan({"b": 200}, lambda name: [SOURCE]).saves
    late.close()


def test_groups_that_come_while_the_data_plane_is_away_are_used_when_it_is_back(
    engine: Step, plane: Plane, clock: Clock
) -> None:
    late = scheduler_side(plane, clock)
    assert plane.stop() == 0
    late.stepped(StepReport(layouts=[[engine.caches[0].copies.layout]]), ())
    assert late.matched_tokens(Request("b", TOKENS), 0) == 0
    plane.start()
    engine.workers[0]._client.maintain()
    wait_for(lambda: engine.workers[0]._client.connected, "the worker is back")
    engine.compute(Request("a", TOKENS), SOURCE, seed=1)
    wait_for(lambda: late._client is not None and late._client.connected, "the scheduler's side is back")
    assert late.matched_tokens(Request("c", TOKENS), 0) == CHUNKED
    late.close()


# ---- another connector in a MultiConnector


def test_failed_loads_of_another_connector_are_not_larders(engine: Step) -> None:
    engine.compute(Request("a", TOKENS), SOURCE, seed=1)
    request = Request("b", TOKENS)
    assert engine.found(request) == CHUNKED
    engine.scheduler.allocated(request, [SOURCE], 0)  # the other connector loads it
    engine.scheduler.stepped(None, ["b"], ["b"])
    assert engine.found(request) == CHUNKED
    assert "failed_loads" not in engine.scheduler.take_counts()


@pytest.mark.parametrize("failed", [False, True])
def test_what_another_connector_loads_within_a_step_is_saved_after_the_step(engine: Step, failed: bool) -> None:
    request = Request("a", TOKENS)
    assert engine.track(request, SOURCE) == 0
    engine.scheduler.allocated(request, [SOURCE], 0)
    request.num_computed_tokens = 128
    plan = engine.plan({"a": 72})
    assert not plan.saves
    assert not engine.plan({"a": 1}).saves, "planned before the step has ended"
    engine.scheduler.stepped(StepReport(step=plan.step), ())
    request.num_computed_tokens = 0 if failed else 201
    plan = engine.plan({"a": 64 if failed else 1})
    assert [len(save.keys) // 32 for save in plan.saves] == [1 if failed else 3], "after a failure, what is recomputed"


def test_what_another_connector_loaded_before_a_step_is_saved_with_it(engine: Step) -> None:
    request = Request("a", TOKENS)
    assert engine.track(request, SOURCE) == 0
    engine.scheduler.allocated(request, [SOURCE], 0)
    engine.plan()
    engine.scheduler.stepped(None, ["a"])
    engine.scheduler.allocated(request, [SOURCE], 0)
    request.num_computed_tokens = 199
    (save,) = engine.plan({"a": 1}).saves
    assert len(save.keys) // 32 == 3
