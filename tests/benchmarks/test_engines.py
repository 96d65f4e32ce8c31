"""The comparison of connectors without vLLM: what is asked of engines, and what the report says of one that fails."""

from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from benchmarks.engines import __main__ as command
from benchmarks.engines import look_ups
from benchmarks.engines.comparison import FULL, Comparison, Effort, Questions
from benchmarks.engines.figures import results_of, section_of, summarized
from benchmarks.engines.lineup import BARE, BESIDE, GATEWAY, LARDER, LMCACHE, MAX_TOKENS, Lineup
from benchmarks.engines.load_waits import LoadWaits
from benchmarks.harness.result import Report, Result, at_most
from tests.clock import Clock

QUESTIONS = Questions(users=3, history=(50, 60), question=8, answer=4, rates=(10.0, 20.0), seconds=5.0, answer_s=2.0)
EFFORT = Effort(sets=1, rounds=2, busy=0, pool_bytes=1 << 20, questions=QUESTIONS)
LOOK_UPS = [at_most(f"connector_lookup_{which}_p99", 1.0, "us", None) for which in ("known", "new")]


class Fake:
    """An engine that takes `seconds` for everything, fails at a line, does not answer the last requests, and for the
    first ones has these loads."""

    def __init__(
        self, seconds: float, fails_at: int = 1_000, unanswered: int = 0, loads: Sequence[tuple[int, float]] = ()
    ) -> None:
        self.seconds, self.fails_at, self.unanswered, self.loads = seconds, fails_at, unanswered, loads
        self.served: list[list[dict[str, Any]]] = []
        self.limits: list[float | None] = []

    def do(self, what: str, requests: list[dict[str, Any]] | None = None, limit_s: float | None = None) -> Any:
        if requests is None:
            return True
        self.served.append(requests)
        self.limits.append(limit_s)
        if len(self.served) == self.fails_at:
            raise RuntimeError("no answer of vLLM: it ended\nmore")
        times = dict.fromkeys(("seconds", "settled", "cpu"), self.seconds)
        first: list[float | None] = [self.seconds] * len(requests)
        if limit_s is not None and self.unanswered:
            first[-self.unanswered :] = [None] * self.unanswered
        loads = [*self.loads, *[None] * len(requests)][: len(requests)]
        return times | {"first": first, "cached": [0] * len(requests), "loads": loads}


def running(engines: dict[str, Fake]) -> Lineup:
    lineup = Lineup()
    lineup.engines.update(engines)  # type: ignore[arg-type]
    return lineup


def compared(engines: dict[str, Fake], effort: Effort = EFFORT) -> tuple[Lineup, Comparison]:
    lineup, comparison = running(engines), Comparison(effort)
    assert len(list(comparison.measure(lineup))) == effort.rounds
    return lineup, comparison


def section(results: list[Result], samples: Any, **machine: str) -> str:
    described: dict[str, str | int] = {"cores": 2, "load": "0.1 to 0.2", "dtype": "float32", "rounds": 2, **machine}
    return section_of(Report(described, 1.0, [*results, *LOOK_UPS]), samples, "Questions.")


def test_an_engine_that_fails_is_left_out_and_the_report_says_why() -> None:
    lineup, comparison = compared(
        {BARE: Fake(1.0), LMCACHE: Fake(0.8), GATEWAY: Fake(1.5, fails_at=5), LARDER: Fake(0.4)}
    )
    assert lineup.failed == {GATEWAY: "no answer of vLLM: it ended"}
    samples = summarized(
        {
            figure: {name: values for name, values in engines.items() if name not in lineup.failed}
            for figure, engines in comparison.samples.items()
        }
    )
    results = {result.name: result for result in results_of(samples)}
    assert results["seconds_larder_to_vllm"].met
    assert (results["mean@10_larder_to_lmcache"].value, results["mean@10_larder_to_lmcache"].met) == (0.5, True)
    assert results["goodput@10_larder_to_lmcache"].value == pytest.approx(2.0)
    assert "mean@10_gateway" not in results
    text = section([*results.values()], samples, gateway_failed=lineup.failed[GATEWAY])
    assert "Not measured: LMCache's connector on Larder: no answer of vLLM: it ended" in text
    assert "| first token, mean, 20/s |  | 0.8 s | 0.4 s |  | 0.50 (0.50 to 0.50) |" in text


def test_vllm_alone_answers_at_the_lowest_rate_only_and_reads_no_texts() -> None:
    bare, larder = Fake(1.0), Fake(0.5)
    _, comparison = compared({BARE: bare, LARDER: larder})
    assert set(comparison.samples["mean@10"]) == {BARE, LARDER}
    assert set(comparison.samples["mean@20"]) == {LARDER}
    assert len(larder.served) - len(bare.served) == 1 + EFFORT.rounds


def test_questions_end_at_a_limit_and_those_without_an_answer_are_not_in_time() -> None:
    engine = Fake(0.1, unanswered=2)
    _, comparison = compared({LARDER: engine})
    assert [limit for limit in engine.limits if limit is not None] == [7.0] * 4
    assert all(comparison.samples["unanswered@10"][LARDER])
    count = len(engine.served[-2])
    assert comparison.samples["goodput@10"][LARDER][-1] == pytest.approx((count - 2) / 0.1)
    assert comparison.samples["mean@10"][LARDER][-1] > 0.1


def test_a_first_token_is_in_time_within_three_times_that_of_the_fastest_engine_without_load() -> None:
    _, comparison = compared({BARE: Fake(1.0), LARDER: Fake(0.3)})
    assert comparison.samples["goodput_unloaded@10"][BARE] == [0.0, 0.0]
    assert all(comparison.samples["goodput_unloaded@10"][LARDER])


def test_the_wait_for_a_load_is_compared_with_the_computation_by_vllm_alone() -> None:
    bare, larder = Fake(1.0), Fake(0.5, loads=[(30, 0.2), (60, 1.5), (0, 0.0)])
    _, comparison = compared({BARE: bare, LARDER: larder, BESIDE: Fake(0.5)})
    prompt = len(next(each for each in bare.served if len(each) == 1)[0]["tokens"])
    token_s = 1.0 / prompt
    excess = [0.2 - 30 * token_s, 1.5 - 60 * token_s, 0.0] * EFFORT.rounds
    assert comparison.samples["excess@10"] == {BARE: [], LARDER: excess, BESIDE: []}
    samples = summarized(comparison.samples)
    results = {result.name: result for result in results_of(samples)}
    assert results["excess_p50@20_larder"].value == 0
    assert (results["excess_max@20_larder"].value, results["excess_max@20_larder"].unit) == (max(excess), "s")
    assert (results["excess_p99@20_larder"].value, results["excess_p99@20_larder"].met) == (max(excess), False)
    assert (results["excess_count@20_larder"].value, results["excess_loads@20_larder"].value) == (2, 6)
    assert not any("excess" in name and "_to_" in name for name in results)
    text = section([*results.values()], samples)
    assert f"| the same, 99 %, 20/s |  | {max(excess):.3g} s, **missed** |  |  |  |" in text
    assert "| of that many loads, 20/s |  | 6 |  |  |  |" in text
    assert "excess@10" not in compared({LARDER: larder})[1].samples


def test_a_wait_lasts_from_the_plan_of_a_load_or_the_first_answer_to_wait_until_the_request_computes() -> None:
    clock = Clock()

    def load(context: None) -> None:
        clock.now += 0.25

    answers: dict[str, tuple[int | None, bool]] = {}
    scheduler = SimpleNamespace(
        get_num_new_matched_tokens=lambda request, local: answers[request.request_id],
        update_state_after_alloc=lambda request, blocks, tokens: None,
    )
    worker = SimpleNamespace(start_load_kv=load)
    waits = LoadWaits(scheduler, worker, clock)

    def look_up(name: str, tokens: int | None, *, beside: bool = False) -> None:
        answers[name] = tokens, beside
        assert scheduler.get_num_new_matched_tokens(SimpleNamespace(request_id=name), 0) == answers[name]

    def allocate(name: str, tokens: int) -> None:
        scheduler.update_state_after_alloc(SimpleNamespace(request_id=name), None, tokens)

    look_up("beside", None)
    look_up("computed", None)
    clock.now = 1.0
    look_up("beside", 64, beside=True)
    clock.now = 2.0
    allocate("beside", 64)
    look_up("computed", 0)
    allocate("computed", 0)
    for _ in range(2):  # it was preempted in between
        look_up("inside", 32)
        allocate("inside", 32)
        worker.start_load_kv(None)
    clock.now = 5.0
    allocate("beside", 0)
    clock.now = 6.0
    look_up("aborted", 16, beside=True)
    allocate("aborted", 16)
    clock.now = 8.0
    assert waits.take() == {"beside": (64, 5.0), "inside": (64, 0.5), "aborted": (16, 2.0)}
    assert waits.take() == {}


def test_without_any_engine_there_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="vLLM alone: no answer of vLLM: it ended; Larder's connector: no answer"):
        compared({BARE: Fake(1.0, fails_at=1), LARDER: Fake(1.0, fails_at=1)})


def test_figures_of_complete_rounds_are_written_before_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Fake):
        def do(self, what: str, requests: Any = None, limit_s: float | None = None) -> Any:
            if len(self.served) == 8:
                raise KeyboardInterrupt
            return super().do(what, requests, limit_s)

    @contextmanager
    def lineup(*_: Any) -> Any:
        yield running({LARDER: Interrupted(0.1), BESIDE: Fake(0.2)})

    monkeypatch.setattr(command, "lineup", lineup)
    monkeypatch.setattr(look_ups, "run", lambda _: LOOK_UPS)
    monkeypatch.setattr(command, "FULL", replace(FULL, pool_bytes=64 << 20))
    done = CliRunner().invoke(command.main, ["--users", "2", "--rounds", "3", "--sets", "1", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "round 1 of 3" in done.output
    assert "round 2 of 3" not in done.output
    assert "interrupted" in done.output
    (figures,) = tmp_path.glob("*.json")
    assert '"mean@2_larder_to_beside"' in figures.read_text()
    assert "Medians of 1 interleaved rounds" in figures.with_suffix(".md").read_text()


def test_all_engines_answer_the_same_questions_which_continue_conversations_and_fit_the_model() -> None:
    lmcache, larder = Fake(1.0), Fake(1.0)
    compared(
        {LMCACHE: lmcache, LARDER: larder},
        Effort(1, 1, 0, 1 << 20, Questions(users=2, history=(4000, 4000), rates=(20.0,), seconds=5.0)),
    )
    assert lmcache.served == larder.served
    _, texts, _, alone, questions = larder.served
    assert len(texts) == 2
    assert alone[0]["tokens"][:4000] == texts[0]["tokens"]
    assert all(len(each["tokens"]) + each["new"] <= MAX_TOKENS for each in questions)
    for text in texts:
        prompts = [each["tokens"] for each in questions if each["tokens"][:4000] == text["tokens"]]
        assert len(prompts) > 1
        assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
    assert [each["at"] for each in questions] == sorted(each["at"] for each in questions)
