"""The decision whether a prefix is loaded or recomputed."""

from dataplane.engines.vllm.rates import FORGET_S, BreakEven


def test_a_set_minimum_decides_alone() -> None:
    rates = BreakEven(100)
    rates.note_prefill(1000, 0.001)
    assert [rates.worth_loading(tokens, 0) for tokens in (99, 100)] == [False, True]


def test_a_prefix_is_computed_if_that_is_faster_than_loading() -> None:
    rates = BreakEven("auto")
    assert rates.worth_loading(1, 0), "nothing is known"
    rates.note_prefill(10_000, 1.0)
    assert rates.worth_loading(1, 0)
    rates.note_load(100_000, 1.0, now=0)
    assert not rates.worth_loading(16, 1), "the step that a load costs takes longer"
    assert rates.worth_loading(1000, 1)
    for _ in range(30):
        rates.note_load(1_000, 1.0, now=2)
    assert not rates.worth_loading(100_000, 3)
    assert rates.worth_loading(100_000, 3 + FORGET_S), "a slow moment is forgotten"


def test_a_request_waits_for_tiers_if_that_is_faster_than_computing() -> None:
    rates = BreakEven("auto")
    assert rates.worth_waiting(1000, 1000, 60, 0), "nothing is known"
    rates.note_prefill(10_000, 1.0)
    assert rates.worth_waiting(2000, 2000, 0.1, 0)
    assert not rates.worth_waiting(2000, 500, 0.1, 0), "the part that is missing counts"
    rates.note_load(20_000, 1.0, now=0)
    assert not rates.worth_waiting(2000, 2000, 0.1, 1), "so does the copy"
    assert rates.worth_waiting(2000, 2000, 0.1, 1 + FORGET_S)


def test_a_set_minimum_decides_alone_about_tiers_too() -> None:
    rates = BreakEven(100)
    rates.note_prefill(1000, 0.001)
    assert [rates.worth_waiting(tokens, 1, 60, 0) for tokens in (99, 100)] == [False, True]


def test_steps_that_only_decode_do_not_count_for_the_prefill_rate() -> None:
    rates = BreakEven("auto")
    rates.note_prefill(8, 1.0)
    rates.note_prefill(1000, 0)
    assert rates.prefill_rate == 0
