"""The figures of a comparison, as results and as a section of the documentation."""

from collections.abc import Callable
from datetime import datetime
from statistics import median

import numpy as np

from benchmarks.engines.comparison import (
    BATCH,
    NEW_TOKENS,
    PREFIX_TOKENS,
    PROMPT_TOKENS,
    TRACE_SCALE,
    TTFT_BOUND_S,
    Samples,
)
from benchmarks.engines.lineup import BARE, LARDER, TITLES
from benchmarks.harness.result import Report, Result, at_least, at_most
from benchmarks.harness.timing import interval

SECTION = "## Engines"
BATCH_TARGET = 1.02
_NONE = "not measured"


def _ratios(of: dict[str, list[float]], name: str, sets: int) -> list[float]:
    """Return the median ratio to vLLM alone for each set of processes."""
    ratios = np.divide(of[name], of[BARE]).reshape(sets, -1)
    return [float(each) for each in np.median(ratios, axis=1)]


def results_of(samples: Samples, sets: int) -> list[Result]:
    """Return the medians. Those of ratios are taken over the sets and have an interval of 95 %."""
    results = []
    for figure, unit in {"batch": "s", "settled": "s", "cpu": "s", "thread": "s", "ttft": "s"}.items():
        alone = median(samples[figure][BARE])
        for name, values in samples[figure].items():
            results.append(at_most(f"{figure}_{name}", median(values), unit, None, alone))
            if name != BARE:
                target = BATCH_TARGET if (figure, name) == ("batch", LARDER) else None
                ratios = _ratios(samples[figure], name, sets)
                low, high = interval(ratios)
                results += [
                    at_most(f"{figure}_{name}_ratio", median(ratios), "of vLLM", target),
                    at_most(f"{figure}_{name}_ratio_low", low, "of vLLM", None),
                    at_most(f"{figure}_{name}_ratio_high", high, "of vLLM", None),
                ]
    reported = {
        "faults": "",
        "ttft_tokens": "tokens",
        "goodput": "/s",
        "in_time": "of all",
        "goodput_ttft": "s",
        "found": "of all",
    }
    for figure, unit in reported.items():
        for name, values in samples.get(figure, {}).items():
            alone = median(samples[figure][BARE])
            results.append(at_least(f"{figure}_{name}", median(values), unit, None, alone))
    return results


def section_of(report: Report, samples: Samples, sets: int) -> str:
    """Return the section with the table for the documentation."""

    def with_ratio(figure: str, name: str, text: str) -> str:
        ratios = _ratios(samples[figure], name, sets)
        value, (low, high) = median(ratios), interval(ratios)
        return text if name == BARE else f"{text}: {value:.3f} ({low:.3f} to {high:.3f})"

    def seconds(figure: str, name: str) -> str:
        return with_ratio(figure, name, f"{median(samples[figure][name]):.3f} s")

    def share(figure: str, name: str) -> str:
        return f"{median(samples[figure][name]):.0%}".replace("%", " %")

    rows: dict[str, Callable[[str], str]] = {
        f"{BATCH} new prompts of {PROMPT_TOKENS:,} tokens, {NEW_TOKENS} new tokens each: until the last token":
            lambda name: seconds("batch", name),
        "the same, until all is saved": lambda name: seconds("settled", name),
        "processor time of the engine until then": lambda name: seconds("cpu", name),
        "processor time of the thread that computes": lambda name: seconds("thread", name),
        f"first token of a prompt of {PREFIX_TOKENS:,} tokens that was stored": lambda name: seconds("ttft", name),
        "tokens of it that were found": lambda name: f"{median(samples['ttft_tokens'][name]):,.0f}",
    }  # fmt: skip
    if "goodput" in samples:
        rows |= {
            f"goodput: requests a second with a first token within {TTFT_BOUND_S:g} s":
                lambda name: with_ratio("goodput", name, f"{median(samples['goodput'][name]):.2f}"),
            "requests in time": lambda name: share("in_time", name),
            "tokens of prompts that were found": lambda name: share("found", name),
        }  # fmt: skip
    lines = ["| | " + " | ".join(TITLES.values()) + " |", "|---|" + "---|" * len(TITLES)]
    for what, cell in rows.items():
        cells = [cell(name) if name in samples["batch"] else _NONE for name in TITLES]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    rounds = len(samples["batch"][BARE])
    by_name = {result.name: result for result in report.results}
    known, new = (by_name[f"connector_lookup_{which}_p99"].value for which in ("known", "new"))
    goodput = "Goodput was not measured: no trace was given."
    if "goodput" in samples:
        goodput = (
            f"Goodput: about {median(samples['requests'][BARE]):.0f} requests of whole conversations of a trace, "
            f"{TRACE_SCALE} times\nshorter, at the rate at which vLLM alone is just saturated."
        )
    failed = "".join(
        f"\nNot measured: {TITLES[name]}: {report.machine[f'{name}_failed']}"
        for name in TITLES
        if f"{name}_failed" in report.machine
    )
    return f"""{SECTION}

The engines are vLLM on CPU with a tiny model. Its KV bytes per computation are many times those of a real model, so the
differences from vLLM alone are upper bounds of the cost of a connector.
{datetime.now().astimezone():%d %B %Y}, {report.machine["cores"]} cores, load
{report.machine["load"]}.
Medians of {rounds} interleaved rounds, {rounds // sets} in each of {sets} sets of processes; ratios to vLLM alone
in the same round, with intervals of 95 % over the sets. {goodput}{failed}

{chr(10).join(lines)}

Look-up of 16,384 tokens by Larder's connector, p99: {known:.0f} µs, and {new:.0f} µs for the first one of a request.
"""
