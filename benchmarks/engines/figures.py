"""The figures of a comparison, as results and as a section of the documentation."""

from collections.abc import Callable
from datetime import datetime
from statistics import median

import numpy as np

from benchmarks.engines.comparison import BATCH, NEW_TOKENS, PROMPT_TOKENS, TTFT_BOUND_S, UNLOADED_TIMES, Samples
from benchmarks.engines.lineup import BARE, BESIDE, LARDER, LMCACHE, OFFLOADING, TITLES
from benchmarks.harness.result import Report, Result, at_least, at_most
from benchmarks.harness.timing import interval

SECTION = "## Engines"
EXCESS_S = 0.01
"""No request should wait this much longer for a load than the computation of its tokens takes."""
TARGETS = {
    ("seconds", BARE): 1.02,
    ("mean", LMCACHE): 0.5,
    ("p90", LMCACHE): 0.6,
    ("goodput", LMCACHE): 1.0,
    ("goodput", OFFLOADING): 1.0,
    ("goodput_unloaded", LMCACHE): 1.0,
    ("goodput_unloaded", OFFLOADING): 1.0,
    ("excess_p99", LARDER): EXCESS_S,
}
"""Bound of a figure of Larder's connector divided by that of another engine, or of the figure itself."""
_EXCESS: dict[str, Callable[[list[float]], float]] = {
    "p50": lambda values: float(np.percentile(values, 50)),
    "p99": lambda values: float(np.percentile(values, 99)),
    "max": max,
    "count": lambda values: sum(value > EXCESS_S for value in values),
    "loads": len,
}
_TITLES = {
    "seconds": f"{BATCH} new prompts of {PROMPT_TOKENS:,} tokens, {NEW_TOKENS} new tokens each: until the last token",
    "settled": "the same, until all is saved",
    "mean": "first token, mean",
    "p50": "first token, median",
    "p90": "first token, 90 %",
    "unloaded": "first token without load",
    "goodput": f"answers a second with a first token within {TTFT_BOUND_S:g} s",
    "goodput_unloaded": f"answers a second with a first token within {UNLOADED_TIMES} times the one without load",
    "unanswered": "questions without a first token in the end",
    "found": "tokens of prompts that were found",
    "cpu": "processor time of the engine",
    "excess_p50": "wait for a load beyond the computation of its tokens, median",
    "excess_p99": "the same, 99 %",
    "excess_max": "the same, longest",
    "excess_count": f"loads that took over {EXCESS_S * 1e3:g} ms longer than the computation",
    "excess_loads": "of that many loads",
}
_UNITS = {
    "found": "of all",
    "unanswered": "of all",
    "goodput": "/s",
    "goodput_unloaded": "/s",
    "excess_count": "",
    "excess_loads": "",
}


def summarized(samples: Samples) -> Samples:
    """Return the samples with figures over all loads of all rounds in place of those of each load."""
    figures: Samples = {}
    for figure, engines in samples.items():
        kind, _, rate = figure.partition("@")
        if kind != "excess":
            figures[figure] = engines
            continue
        for name, of in _EXCESS.items():
            figures[f"excess_{name}@{rate}"] = {engine: [of(values)] for engine, values in engines.items() if values}
    return figures


def results_of(samples: Samples) -> list[Result]:
    """Return medians over the rounds, and ratios of Larder's connector to others with intervals of 95 %."""
    results = []
    for figure, engines in samples.items():
        kind = figure.partition("@")[0]
        better = at_least if kind in ("found", "goodput", "goodput_unloaded") else at_most
        for name, values in engines.items():
            target = TARGETS.get((kind, name)) if name == LARDER else None
            results.append(better(f"{figure}_{name}", median(values), _UNITS.get(kind, "s"), target))
        # Of differences, which may be negative, there are no ratios.
        for baseline in () if kind.startswith("excess") else (BARE, LMCACHE, OFFLOADING, BESIDE):
            if LARDER in engines and baseline in engines and all(engines[baseline]):
                ratios = np.divide(engines[LARDER], engines[baseline])
                low, high = interval(ratios)
                name = f"{figure}_larder_to_{baseline}"
                results += [
                    better(name, float(np.median(ratios)), "", TARGETS.get((kind, baseline))),
                    better(f"{name}_low", low, "", None),
                    better(f"{name}_high", high, "", None),
                ]
    return results


def section_of(report: Report, samples: Samples, questions: str) -> str:
    """Return the section with the tables for the documentation. `questions` describes them."""
    by_name = {result.name: result for result in report.results}
    engine_names = [name for name in TITLES if any(name in engines for engines in samples.values())]
    baselines = [name for name in (BARE, LMCACHE, BESIDE) if name in engine_names and LARDER in engine_names]

    def missed(result: Result) -> str:
        return ", **missed**" if result.met is False else ""

    def value(figure: str, name: str) -> str:
        result = by_name.get(f"{figure}_{name}")
        return "" if result is None else f"{result.value:,.3g} {result.unit}".strip() + missed(result)

    def ratio(figure: str, baseline: str) -> str:
        result = by_name.get(f"{figure}_larder_to_{baseline}")
        if result is None:
            return ""
        low, high = (by_name[f"{result.name}_{end}"].value for end in ("low", "high"))
        return f"{result.value:.2f} ({low:.2f} to {high:.2f}){missed(result)}"

    def row(figure: str) -> str:
        kind, _, rate = figure.partition("@")
        cells = [value(figure, name) for name in engine_names] + [ratio(figure, baseline) for baseline in baselines]
        return f"| {_TITLES[kind]}{f', {rate}/s' if rate else ''} | {' | '.join(cells)} |"

    failed = "".join(
        f"\nNot measured: {TITLES[name]}: {report.machine[f'{name}_failed']}"
        for name in TITLES
        if f"{name}_failed" in report.machine
    )
    known, new = (by_name[f"connector_lookup_{kind}_p99"].value for kind in ("known", "new"))
    return f"""{SECTION}

The engines are vLLM on CPU with a small model. Its KV bytes per computation are many times those of a real model, so
the differences from vLLM alone are upper bounds of the cost of a connector.
{datetime.now().astimezone():%d %B %Y}, {report.machine["cores"]} cores, {report.machine["dtype"]}, load average
{report.machine["load"]} (the engines themselves: about 1).
Medians of {report.machine["rounds"]} interleaved rounds, and ratios of Larder's connector to others in the same round,
with intervals of 95 %.
{questions}{failed}

| | {" | ".join([TITLES[name] for name in engine_names] + [f"Larder / {TITLES[name]}" for name in baselines])} |
|---|{"---|" * (len(engine_names) + len(baselines))}
{chr(10).join(row(figure) for figure in samples)}

Look-up of 16,384 tokens by Larder's connector, p99: {known:.0f} µs, and {new:.0f} µs for the first one of a request.
"""
