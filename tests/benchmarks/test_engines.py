"""The comparison of connectors without vLLM: what is asked of engines, and what the report says of one that fails."""

from typing import Any

import pytest

from benchmarks.engines.comparison import TRACE_BLOCK, Comparison, Effort
from benchmarks.engines.figures import results_of, section_of
from benchmarks.engines.lineup import BARE, GATEWAY, LARDER, LMCACHE, MAX_TOKENS, Lineup
from benchmarks.harness.result import Report, at_most
from dataplane.replay.trace import TraceRequest

EFFORT = Effort(sets=1, rounds=2, conversations=1, pool_bytes=1 << 20)
TRACE = [
    TraceRequest(0, 1024, 80, (0, 1)),
    TraceRequest(1000, 1500, 8, (0, 1, 2)),
    TraceRequest(2000, 60_000, 9000, (0, *range(3, 120))),
]


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
        times = dict.fromkeys(("seconds", "settled", "cpu", "thread"), self.seconds)
        return times | {"faults": 3, "first": [self.seconds] * len(requests), "cached": [0] * len(requests)}


def compared(**engines: Fake) -> tuple[Lineup, Comparison]:
    lineup, comparison = Lineup(), Comparison(EFFORT, TRACE)
    lineup.engines.update(engines)  # type: ignore[arg-type]
    comparison.measure(lineup)
    return lineup, comparison


def test_an_engine_that_fails_is_left_out_and_the_report_says_why():
    lineup, comparison = compared(
        **{BARE: Fake(1.0), LMCACHE: Fake(1.0, fails_at=5), GATEWAY: Fake(1.5), LARDER: Fake(1.01)}
    )
    assert lineup.failed == {LMCACHE: "no answer of vLLM: it ended"}
    samples = {
        figure: {name: each for name, each in of.items() if name not in lineup.failed}
        for figure, of in comparison.samples.items()
    }
    results = {each.name: each for each in results_of(samples, 1)}
    assert results["batch_larder_ratio"].met
    assert results["batch_gateway_ratio"].value == 1.5
    assert "batch_lmcache" not in results
    lookups = [at_most(f"connector_lookup_{which}_p99", 1.0, "us", None) for which in ("known", "new")]
    machine: dict[str, str | int] = {"cores": 2, "load": "0.1", "lmcache_failed": lineup.failed[LMCACHE]}
    section = section_of(Report(machine, 1.0, [*results.values(), *lookups]), samples, 1)
    assert "Not measured: LMCache's connector and server: no answer of vLLM: it ended" in section
    assert (
        "| 1.000 s | not measured | not measured | 1.500 s: 1.500 (1.500 to 1.500) | 1.010 s: 1.010 (1.010 to 1.010) |"
        in section
    )


def test_without_the_engine_that_others_are_compared_with_there_is_no_figure():
    with pytest.raises(RuntimeError, match="it ended"):
        compared(**{BARE: Fake(1.0, fails_at=1), LARDER: Fake(1.0)})


def test_requests_of_a_trace_keep_shared_prefixes_and_arrivals_and_fit_the_model():
    larder = Fake(1.0)
    compared(**{BARE: Fake(4.0), LARDER: larder})
    first, second, third = larder.served[-1]
    assert [each["at"] for each in larder.served[-1]] == [0.0, 2.0, 4.0], "in the 4 s of vLLM alone"
    assert (len(first["tokens"]), len(second["tokens"])) == (128, 187)
    assert second["tokens"][:128] == first["tokens"]
    assert third["tokens"][:TRACE_BLOCK] == first["tokens"][:TRACE_BLOCK]
    assert len(third["tokens"]) + third["new"] == MAX_TOKENS
