"""Series of times that the management plane does not keep, from the Prometheus that scrapes Larder."""

import asyncio
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import httpx
import msgspec

from app.observe import node_activity_metrics, node_metrics, tenant_metrics, tier_metrics
from app.observe.bounded import OTHER
from app.observe.page import C, MetricDeclaration
from app.observe.series import OTHER_TENANTS, SeriesDeclaration

TIMEOUT_S = 10.0
AT_ONCE = 4
_TIER_COLUMNS = {
    "tier_budget_bytes": "budget_bytes",
    "tier_used_bytes": "stored_bytes",
    "tier_waiting_bytes": "waiting_bytes",
    "tier_spilled_bytes": "spilled_bytes",
    "tier_loaded_bytes": "loaded_bytes",
    "tier_evicted_blocks": "evicted_blocks",
}
NODE_METRICS: Mapping[str, MetricDeclaration] = {
    **node_metrics.POOL,
    **node_metrics.TOTALS,
    **{column: tier_metrics.TIERS[field] for column, field in _TIER_COLUMNS.items()},
    "engines": node_metrics.ENGINES,
    "evicted_blocks": node_activity_metrics.EVICTED_BLOCKS,
    "evicted_bytes": node_activity_metrics.EVICTED_BYTES,
    "refused_blocks": node_activity_metrics.REFUSED,
}
"""Metrics by the column that they correspond to."""
TENANT_METRICS: Mapping[str, MetricDeclaration] = {
    **tenant_metrics.TENANTS,
    "used_bytes": tenant_metrics.TENANTS["bytes"],
}
"""The same for columns of tenants. The metrics have the largest tenants of each node by name."""


class Selection(NamedTuple):
    """What a series is about: a node, tenants as shown, or everything."""

    node: str | None = None
    tenants: Sequence[str] | None = None


class _Series(msgspec.Struct):
    values: list[tuple[float, str]]


class _Data(msgspec.Struct):
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data = msgspec.field(default_factory=_Data)
    error: str = ""


class PrometheusSeries:
    def __init__(self, url: str) -> None:
        """`url` is that of Prometheus, without `/api/v1`."""
        self._url = f"{url.rstrip('/')}/api/v1/query_range"

    async def values(
        self, selections: Sequence[tuple[SeriesDeclaration, Selection]], first: int, last: int, step_s: int
    ) -> tuple[list[list[float | None]], str]:
        """Return the values of each wanted series for the steps that end from `first` to `last`, and a sentence that
        says what is missing; empty if nothing is. Raises nothing."""
        limit = asyncio.Semaphore(AT_ONCE)
        times = range(first, last + 1, step_s)
        problems: list[str] = []
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:

            async def one(each: SeriesDeclaration, selection: Selection) -> list[float | None]:
                query = promql(each, selection, step_s)
                if query is None:
                    problems.append(f"Prometheus has no {each.name}")
                    return [None] * len(times)
                sent = {"query": query, "start": str(first), "end": str(last), "step": str(step_s)}
                try:
                    async with limit:
                        reply = await client.post(self._url, data=sent)
                    answer = msgspec.json.decode(reply.content, type=_Answer)
                except (httpx.HTTPError, msgspec.DecodeError) as error:
                    problems.append(f"Prometheus did not answer as expected: {str(error) or type(error).__name__}")
                    return [None] * len(times)
                if answer.status != "success":
                    problems.append(f"Prometheus refused the query: {answer.error[:200]}")
                found = {int(at): float(text) for each in answer.data.result for at, text in each.values}
                return [_known(found.get(at)) for at in times]

            values = await asyncio.gather(*(one(*each) for each in selections))
        return list(values), "; ".join(dict.fromkeys(problems))


def promql(each: SeriesDeclaration, selection: Selection, step_s: int) -> str | None:
    """Return the query for a series; None if no metric corresponds to it. The largest value of several managers counts,
    because a metric has another `instance` after a change of the leader."""
    metrics = NODE_METRICS if selection.tenants is None else TENANT_METRICS
    parts = []
    for column in each.columns:
        metric = metrics.get(column)
        if metric is None:
            return None
        name = f"{metric.name}_total" if metric.kind == C else metric.name
        function = "increase" if metric.kind == C else "avg_over_time"
        over = f"{function}({name}{_matchers(selection)}[{step_s}s])"
        merge = "max" if column == "limit_bytes" else "sum"
        parts.append(f"{merge}(max without (instance, pod) ({over}))")
    if each.form == "ratio":
        return f"{parts[0]} / {parts[1]} * {each.factor}"
    return f"{parts[0]} / {step_s} * {each.factor}" if each.form == "rate" else parts[0]


def _matchers(selection: Selection) -> str:
    if selection.node is not None:
        return f"{{node={_quoted(selection.node)}}}"
    if selection.tenants is None:
        return ""
    names = [OTHER if name == OTHER_TENANTS else name for name in selection.tenants]
    return f"{{tenant=~{_quoted('|'.join(map(re.escape, names)))}}}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
