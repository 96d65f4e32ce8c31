"""Loads inside steps, on a real data plane, without vLLM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dataplane.engines.vllm.messages import StepPlan
from dataplane.engines.vllm.scheduler import FAILED_S
from dataplane.engines.vllm.worker import Results
from tests.clock import Clock
from tests.dataplane.plane import Plane, wait_for
from tests.engines.vllm.fakes import Request
from tests.engines.vllm.sides import Make, Step

TOKENS = list(range(1000, 1300))
"""Four whole chunks and 44 tokens: 18 blocks of the engine and a part of one."""
CACHED = 192
"""Tokens of the three chunks that another request has stored."""
SOURCE, TARGET = list(range(1, 13)), list(range(20, 39))


@pytest.fixture
def make_engine(make_step: Make, plane: Plane, clock: Clock) -> Make:
    def new(**settings: Any) -> Step:
        engine = make_step(plane, **settings)
        engine.compute(Request("a", TOKENS[:CACHED]), SOURCE, seed=7)
        engine.scheduler._break_even.note_load(100_000, 1.0, clock(), in_step=True)
        return engine

    return new


def planned(engine: Step, request: Request, local: int = 0) -> StepPlan:
    """Schedule a request with a load inside the step, and return the plan of the step that computes the rest."""
    engine.blocks[request.request_id] = TARGET
    tokens = engine.scheduler.matched_tokens(request, local)
    assert tokens == CACHED - local
    assert engine.scheduler.loads_in_step(request.request_id)
    engine.scheduler.allocated(request, [TARGET], tokens)
    request.num_computed_tokens = CACHED
    return engine.scheduler.plan({request.request_id: len(TOKENS) - CACHED}, lambda name: [engine.blocks[name]])


def equal(engine: Step, count: int, first: int = 0) -> bool:
    """Return whether `count` blocks of the target are those of the source."""
    source, target = (engine.caches[0].read(blocks[first : first + count]) for blocks in (SOURCE, TARGET))
    return all(torch.equal(torch.stack(a), torch.stack(b)) for a, b in zip(source, target, strict=True))


def stored(engine: Step, name: str) -> int:
    """Return how many leading chunks are cached."""
    return engine.lookup(Request(name, [*TOKENS, 1])).ready


def test_the_blocks_are_there_before_the_layers_run_and_nothing_is_reported_as_received(make_engine: Make) -> None:
    engine = make_engine()
    request = Request("b", TOKENS)
    plan = planned(engine, request)
    worker = engine.workers[0]
    worker.begin_loads(plan)
    worker.load_in_step(plan)
    assert equal(engine, 12)
    (found,) = engine.carry_out(StepPlan(saves=plan.saves, step=plan.step))
    assert found == Results(), "vLLM fails on results of a request that does not wait"
    assert engine.scheduler._reads == {}
    counts = worker.take_counts()
    assert (counts["loaded_tokens"], counts["step_loaded_tokens"]) == (CACHED, CACHED)
    assert (engine.scheduler.finished(request)[1] or {})["larder"]["loaded_tokens"] == CACHED
    wait_for(lambda: engine.run() and stored(engine, "c") == 4, "the chunk that the step computed is stored")


def test_a_request_that_ends_with_the_step_of_its_load_reports_what_was_loaded(make_engine: Make) -> None:
    """vLLM ends requests before it passes on the results of their step."""
    engine = make_engine()
    request = Request("b", TOKENS)
    planned(engine, request)
    (_, fields) = engine.scheduler.finished(request)
    assert fields is not None
    assert (fields["larder"]["loaded_tokens"], fields["larder"]["loaded_from"]) == (CACHED, {"host": CACHED})


@pytest.mark.parametrize("local", [0, 80])
def test_a_failed_load_is_a_miss_of_exactly_its_missing_blocks(make_engine: Make, clock: Clock, local: int) -> None:
    engine = make_engine()
    request = Request("b", TOKENS)
    plan = planned(engine, request, local)
    (load,) = plan.loads
    object.__setattr__(load, "keys", load.keys[:-32] + bytes(32))  # the third chunk is gone
    (found,) = engine.carry_out(plan)
    assert found == Results(bad_blocks=set(TARGET[8:12]))
    assert equal(engine, 8 - local // 16, local // 16)
    assert engine.evicted == set(TARGET[8:]), "also what was computed from them is no hit of the engine's own cache"
    outcome = engine.scheduler._tracked["b"].outcome
    assert outcome is not None
    assert outcome.loaded_tokens == {"host": 128 - local}
    assert engine.workers[0]._saves == {}, "nor is it stored"
    clock.now += FAILED_S
    assert stored(engine, "c") == 3
    request.num_computed_tokens = 128
    engine.run({"b": len(TOKENS) - 128})
    wait_for(lambda: engine.run() and stored(engine, "d") == 4, "it is stored when it was computed again")


def test_a_step_does_not_wait_longer_than_its_bound_and_a_late_copy_writes_nothing_more(
    make_engine: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(step_load_s=0.1)
    plan = planned(engine, Request("b", TOKENS))
    pages = engine.caches[0].copies._pages
    scatter = pages.scatter

    def slow(*args: Any) -> None:
        scatter(*args)
        clock.now += 0.06

    monkeypatch.setattr(pages, "scatter", slow)
    (found,) = engine.carry_out(plan)
    assert found.bad_blocks == set(TARGET[8:12])
    assert equal(engine, 8)
    assert not equal(engine, 4, 8)
    assert engine.workers[0].take_counts()["late_loads"] == 1


def test_the_verification_of_blocks_counts_in_the_bound_of_a_step(
    make_engine: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(step_load_s=0.1, verify="always")
    plan = planned(engine, Request("b", TOKENS))
    checks = engine.workers[0]._client._integrity
    count_intact, verified = checks.count_intact, list[int]()

    def slow(attachment: Any, descriptors: Any, rows: Any, segments: Any) -> int:
        verified.append(len(rows))
        clock.now += 0.06 * len(rows)
        return count_intact(attachment, descriptors, rows, segments)

    monkeypatch.setattr(checks, "count_intact", slow)
    (found,) = engine.carry_out(plan)
    assert verified == [1, 1], "the third chunk is neither verified nor copied"
    assert found.bad_blocks == set(TARGET[8:12])
    assert equal(engine, 8)


def test_a_load_whose_step_has_no_time_left_is_not_begun(
    make_engine: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would map segments and verify checksums for nothing."""
    engine = make_engine(step_load_s=0.1)
    rates, other = engine.scheduler._break_even, list(range(40, 59))
    rates.note_load(100_000, 1.0, clock())
    rates.note_delay(CACHED, 10.0, clock(), alone=False)
    for name, blocks in (("b", TARGET), ("c", other)):
        engine.begin_load(Request(name, TOKENS), blocks)
        assert engine.scheduler.loads_in_step(name)
    client = engine.workers[0]._client
    acquire, acquired = client.acquire, list[bytes]()

    def slow(keys: bytes, **options: Any) -> Any:
        acquired.append(keys)
        clock.now += 0.2
        return acquire(keys, **options)

    monkeypatch.setattr(client, "acquire", slow)
    (found,) = engine.run({"b": len(TOKENS) - CACHED, "c": len(TOKENS) - CACHED})
    assert len(acquired) == 1
    assert found.bad_blocks == {*TARGET[:12], *other[:12]}


def test_loads_inside_one_step_share_its_bound(make_engine: Make, clock: Clock) -> None:
    engine = make_engine(step_load_s=0.1)
    engine.scheduler._break_even.note_load(CACHED, 0.06, clock(), in_step=True)
    rates = engine.scheduler._break_even
    for _ in range(50):
        rates.note_load(CACHED, 0.06, clock(), in_step=True)
        rates.note_load(CACHED, 0.06, clock())
        rates.note_delay(CACHED, 10.0, clock(), alone=False)
    ways = []
    for name in ("b", "c"):
        request = Request(name, TOKENS)
        tokens = engine.found(request)
        ways.append(engine.scheduler.loads_in_step(name))
        engine.scheduler.allocated(request, [TARGET], tokens)
    assert ways == [True, False]


def test_with_a_bound_of_0_and_before_a_load_was_measured_loads_are_beside_steps(
    make_engine: Make, clock: Clock
) -> None:
    for engine in (make_engine(step_load_s=0), fresh := make_engine()):
        if engine is fresh:
            clock.now += 3600
        assert engine.found(Request("b", TOKENS)) == CACHED
        assert not engine.scheduler.loads_in_step("b")


def test_beside_another_connector_loads_are_beside_steps(make_engine: Make) -> None:
    """It would store what a step computes after a failed load inside it."""
    engine = make_engine()
    engine.scheduler.close()
    engine.scheduler.workers_ready([[replace(engine.caches[0].copies.layout, alone=False)]])
    assert engine.found(Request("b", TOKENS)) == CACHED
    assert not engine.scheduler.loads_in_step("b")


def test_a_request_with_blocks_that_are_being_loaded_waits_for_the_next_step(make_engine: Make) -> None:
    """The engine puts the blocks into its own prefix cache when it schedules the load."""
    engine = make_engine()
    engine.begin_load(Request("b", TOKENS), TARGET)
    sharing, other = Request("c", TOKENS), Request("d", [9, *TOKENS[1:]])
    assert engine.scheduler.matched_tokens(sharing, CACHED) is None
    assert engine.scheduler.matched_tokens(sharing, 0) == CACHED, "it shares nothing"
    assert engine.scheduler.matched_tokens(other, CACHED) == 0
    engine.blocks["b"] = TARGET
    engine.run({"b": 1})
    assert engine.scheduler.matched_tokens(sharing, CACHED) == 0


def test_a_load_that_could_not_be_planned_makes_all_blocks_of_its_request_bad(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    request = Request("b", TOKENS)
    tokens = engine.found(request)
    engine.blocks["b"] = TARGET
    with pytest.raises(TypeError):
        engine.scheduler.allocated(request, None, tokens)  # type: ignore[arg-type]
    engine.scheduler.give_up(request, [TARGET], tokens)
    (found,) = engine.run({"b": len(TOKENS) - CACHED})
    assert found == Results(bad_blocks=set(TARGET))
    assert engine.evicted == set(TARGET)


def test_an_error_of_a_copy_makes_a_load_fail(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    plan = planned(engine, Request("b", TOKENS))

    def fail(*_: object) -> None:
        raise RuntimeError("not a DeviceError")

    with monkeypatch.context() as patch:
        patch.setattr(engine.caches[0].copies._pages, "scatter", fail)
        (found,) = engine.carry_out(plan)
    assert found == Results(bad_blocks=set(TARGET[:12]))


def test_an_abort_during_the_step_releases_the_lease_when_it_ends(make_engine: Make) -> None:
    engine = make_engine()
    request = Request("b", TOKENS)
    plan = planned(engine, request)
    (load,) = plan.loads
    object.__setattr__(load, "keys", bytes(len(load.keys)))
    engine.scheduler.finished(request)
    assert list(engine.scheduler._reads) == ["b"]
    engine.carry_out(plan)
    assert engine.scheduler._reads == {}
    assert engine.evicted == set(TARGET), "the engine has freed them, and could find them again"
    assert engine.found(Request("c", TOKENS)) == 0, "others do not try at once to load what is gone"
