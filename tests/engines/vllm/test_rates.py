"""The decision how a request gets a prefix."""

import math

import pytest

from dataplane.engines.vllm.rates import FORGET_S, GRACE_S, BreakEven, Way


def test_a_set_minimum_decides_alone_whether_to_load() -> None:
    rates = BreakEven(100)
    rates.note_step(1000, 0.001)
    assert [rates.way(tokens, 0) for tokens in (99, 100)] == [Way.COMPUTE, Way.BESIDE]
    rates.note_load(100, 1.0, now=0)
    assert rates.way(100, 0, step_s=2) is Way.IN_STEP
    assert rates.limit_s(100) == math.inf


def test_a_prefix_is_computed_if_that_is_faster_than_loading() -> None:
    rates = BreakEven("auto")
    assert rates.way(1, 0) is Way.BESIDE, "nothing is known"
    rates.note_step(10_000, 1.0)
    assert rates.way(1, 0) is Way.BESIDE
    rates.note_load(100_000, 1.0, now=0)
    rates.note_delay(1000, 0.012, now=0, alone=True)
    assert rates.way(16, 1) is Way.COMPUTE, "the delay takes longer"
    assert rates.way(1000, 1) is Way.BESIDE
    for _ in range(30):
        rates.note_load(1_000, 1.0, now=2)
    assert rates.way(100_000, 3) is Way.COMPUTE
    assert rates.way(100_000, 3 + FORGET_S) is Way.BESIDE, "a slow moment is forgotten"


def test_a_load_is_inside_the_step_if_all_its_requests_wait_less_for_it_than_one_waits_beside_steps() -> None:
    rates = BreakEven("auto")
    rates.note_step(500, 0.5)
    assert rates.way(1000, 0, step_s=1) is Way.BESIDE, "a step must not wait for something that was never measured"
    rates.note_load(100_000, 1.0, now=0)
    assert rates.way(1000, 0, requests=1, step_s=1) is Way.IN_STEP
    assert rates.way(1000, 0, requests=40, step_s=1) is Way.IN_STEP, "until a delay is measured, it is that of a step"
    assert rates.way(1000, 0, requests=60, step_s=1) is Way.BESIDE
    assert rates.way(1000, 0, requests=1, step_s=0.005) is Way.BESIDE, "the step has no time for it"
    rates.note_delay(1000, 0.04, now=0, alone=False)
    assert rates.way(1000, 0, requests=5, step_s=1) is Way.BESIDE
    for _ in range(30):
        rates.note_load(1_000_000, 1.0, now=0, in_step=True)
    assert rates.way(1000, 0, requests=5, step_s=1) is Way.IN_STEP, "the engine's own thread copies faster"


@pytest.mark.parametrize("requests", [1, 2, 40])
def test_a_request_does_not_wait_longer_beside_steps_than_its_computation_takes(requests: int) -> None:
    """However many other requests of the step would wait for the computation."""
    rates = BreakEven("auto")
    rates.note_step(10_000, 1.0)
    rates.note_load(100_000, 1.0, now=0)
    rates.note_delay(1000, 0.16, now=0, alone=True)
    rates.note_delay(1000, 1.16, now=0, alone=False)  # after a step, as would be the end of the computation
    assert rates.way(2000, 0, requests=requests) is Way.BESIDE
    assert rates.way(1000, 0, requests=requests) is Way.COMPUTE
    assert rates.way(1000, 0, requests=requests, step_s=1) is Way.IN_STEP, "all wait less than for the computation"
    for _ in range(30):
        rates.note_load(5_000, 1.0, now=0, in_step=True)
    assert rates.way(1000, 0, requests=requests, step_s=1) is Way.COMPUTE


def test_a_load_is_limited_by_the_time_that_the_computation_takes() -> None:
    rates = BreakEven("auto")
    assert rates.limit_s(1000) == math.inf
    rates.note_step(10_000, 1.0)
    assert rates.limit_s(1000) == 0.1 + GRACE_S


def test_a_request_waits_for_tiers_if_that_is_faster_than_computing() -> None:
    rates = BreakEven("auto")
    assert rates.worth_waiting(1000, 1000, 60, 0), "nothing is known"
    rates.note_step(10_000, 1.0)
    assert rates.worth_waiting(2000, 2000, 0.1, 0)
    assert not rates.worth_waiting(2000, 500, 0.1, 0), "the part that is missing counts"
    rates.note_load(20_000, 1.0, now=0)
    assert not rates.worth_waiting(2000, 2000, 0.1, 1), "so does the copy"
    assert rates.worth_waiting(2000, 2000, 0.1, 1 + FORGET_S)


def test_a_set_minimum_decides_alone_about_tiers_too() -> None:
    rates = BreakEven(100)
    rates.note_step(1000, 0.001)
    assert [rates.worth_waiting(tokens, 1, 60, 0) for tokens in (99, 100)] == [False, True]


def test_steps_that_only_decode_do_not_count_for_the_prefill_rate() -> None:
    rates = BreakEven("auto")
    rates.note_step(8, 1.0)
    rates.note_step(1000, 0)
    assert rates.prefill_rate == 0
