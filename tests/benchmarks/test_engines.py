"""The comparison of connectors without vLLM: what is asked of engines, and what the report says of one that fails."""

from typing import Any

import pytest

from benchmarks.engines.comparison import Comparison, Effort, Questions
from benchmarks.engines.figures import results_of, section_of
from benchmarks.engines.lineup import BARE, GATEWAY, LARDER, LMCACHE, MAX_TOKENS, Lineup
from benchmarks.harness.result import Report, at_most

QUESTIONS = Questions(users=3, history=(50, 60), question=8, answer=4, rates=(10.0,), seconds=5.0)
EFFORT = Effort(sets=1, rounds=2, busy=0, pool_bytes=1 << 20, questions=QUESTIONS)


class Fake:
    """An engine that takes `seconds` for everything, and fails at a line."""

    def __init__(self, seconds: float, fails_at: int = 1_000) -> None:
        self.seconds, self.fails_at = seconds, fails_at
        self.served: list[list[dict[str, Any]]] = []

    def do(self, what: str, requests: list[dict[str, Any]] | None = None) -> Any:
        if requests is None:
            return True
        self.served.append(requests)
        if len(self.served) == self.fails_at:
            raise RuntimeError("no answer of vLLM: it ended\nmore")
        times = dict.fromkeys(("seconds", "settled", "cpu"), self.seconds)
        return times | {"faults": 3, "first": [self.seconds] * len(requests), "cached": [0] * len(requests)}


def compared(engines: dict[str, Fake], effort: Effort = EFFORT) -> tuple[Lineup, Comparison]:
    lineup, comparison = Lineup(), Comparison(effort)
    lineup.engines.update(engines)  # type: ignore[arg-type]
    comparison.measure(lineup)
    return lineup, comparison


def test_an_engine_that_fails_is_left_out_and_the_report_says_why():
    lineup, comparison = compared(
        {BARE: Fake(1.0), LMCACHE: Fake(0.8), GATEWAY: Fake(1.5, fails_at=5), LARDER: Fake(0.4)}
    )
    assert lineup.failed == {GATEWAY: "no answer of vLLM: it ended"}
    samples = {
        figure: {name: each for name, each in of.items() if name not in lineup.failed}
        for figure, of in comparison.samples.items()
    }
    results = {each.name: each for each in results_of(samples)}
    assert results["seconds_larder_to_vllm"].met
    assert (results["mean@10_larder_to_lmcache"].value, results["mean@10_larder_to_lmcache"].met) == (0.5, True)
    assert results["goodput@10_larder_to_lmcache"].value == pytest.approx(2.0)
    assert "mean@10_gateway" not in results
    lookups = [at_most(f"connector_lookup_{which}_p99", 1.0, "us", None) for which in ("known", "new")]
    machine: dict[str, str | int] = {"cores": 2, "load": "0.1", "gateway_failed": lineup.failed[GATEWAY]}
    section = section_of(Report(machine, 1.0, [*results.values(), *lookups]), samples, "Questions.")
    assert "Not measured: LMCache's connector on Larder: no answer of vLLM: it ended" in section
    assert (
        "| first token, mean, 10/s | 1 s | not measured | not measured | 0.8 s | not measured | 0.4 s "
        "| 0.500 (0.500 to 0.500) |" in section
    )


def test_a_first_token_is_in_time_within_three_times_that_of_the_fastest_engine_without_load():
    _, comparison = compared({BARE: Fake(1.0), LARDER: Fake(0.3)})
    assert comparison.samples["goodput_unloaded@10"][BARE] == [0.0, 0.0]
    assert all(comparison.samples["goodput_unloaded@10"][LARDER])


def test_without_the_engine_that_others_are_compared_with_there_is_no_figure():
    with pytest.raises(RuntimeError, match="it ended"):
        compared({BARE: Fake(1.0, fails_at=1), LARDER: Fake(1.0)})


def test_all_engines_answer_the_same_questions_which_continue_conversations_and_fit_the_model():
    bare, larder = Fake(1.0), Fake(1.0)
    compared(
        {BARE: bare, LARDER: larder},
        Effort(1, 1, 0, 1 << 20, Questions(users=2, history=(4000, 4000), rates=(20.0,), seconds=5.0)),
    )
    assert bare.served == larder.served
    *_, texts, alone, questions = larder.served
    assert len(texts) == 2
    assert alone[0]["tokens"][:4000] == texts[0]["tokens"]
    assert all(len(each["tokens"]) + each["new"] <= MAX_TOKENS for each in questions)
    for text in texts:
        prompts = [each["tokens"] for each in questions if each["tokens"][:4000] == text["tokens"]]
        assert len(prompts) > 1
        assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
    assert [each["at"] for each in questions] == sorted(each["at"] for each in questions)
