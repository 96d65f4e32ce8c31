"""Reports of the usage ledger."""

import csv
import io
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from app.errors import FieldError, Invalid
from app.ingest.usage import HOUR_S
from app.schemas.usage.reports import GroupBy, Step, TierUsageCounts, UsageCounts, UsageItem, UsageReport
from app.services.base import checks
from app.services.base.expiry import LATEST, moment
from app.services.base.principals import Principal
from app.services.records.prefill_rates import KnownPrefillRates
from app.store.base.database import Database
from app.store.records import prefill_rates
from app.store.usage import ledger
from app.store.usage.ledger import ACCOUNTS, COUNTERS, TIER_COUNTERS, TIERS, UsageSum
from dataplane.protocol.salts import shown
from dataplane.protocol.tiers import MEMORY
from dataplane.protocol.usage import OTHERS

STEPS: dict[Step, int] = {"1h": HOUR_S, "1d": 24 * HOUR_S}
DEFAULT_STEPS: dict[Step, int] = {"1h": 24, "1d": 30}
"""Default number of steps in a report."""
NO_USE = TierUsageCounts(byte_hours=0.0, served_tokens=0, served_bytes=0)
MAX_ITEMS = 10_000
MAX_SUMS = 4 * MAX_ITEMS
"""Largest number of sums; models and spaces are summed separately because of their rates."""
SECONDS = r"[0-9]{1,11}(\.[0-9]{1,9})?"
"""Pattern of Unix seconds in a query."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
COLUMNS = tuple(name for name in UsageCounts.__struct_fields__ if name != "tiers")
TIER_COLUMNS = TierUsageCounts.__struct_fields__
"""Columns of memory and of each tier, named `COLUMN:TIER`."""


class UsageReports:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def report(
        self, group_by: GroupBy, step: Step, start: str, end: str, tenant: str | None, by: Principal
    ) -> UsageReport:
        """Return the usage of the tenants that the caller may see. `start` and `end` are Unix seconds or RFC 3339; if
        empty, the report covers the last steps. Raises Invalid, Forbidden."""
        first, last = _range(step, start, end, time.time())
        tenants: Iterable[str] | None = by.salts
        if tenant is not None:
            salt = OTHERS if tenant == OTHERS else checks.tenant_in_path(tenant)
            by.check_salt(salt)
            tenants = (salt,)
        async with self._database.read() as session:
            arguments = (group_by, STEPS[step], first, last, tenants, MAX_SUMS)
            sums = await ledger.sums(session, ACCOUNTS, *arguments)
            sums += await ledger.sums(session, TIERS, *arguments)
            rates = KnownPrefillRates(await prefill_rates.all_rates(session))
        items = _items(sums, group_by == "tenant", rates)
        if len(sums) > MAX_SUMS or len(items) > MAX_ITEMS:
            raise Invalid(
                f"from: expected a report of at most {MAX_ITEMS} items: ask for less time, longer steps or one tenant",
                [FieldError("from", f"expected less time: at most {MAX_ITEMS} items are in one report")],
            )
        return UsageReport(
            group_by=group_by, step=step, start=float(first), end=float(last), items=items, totals=_total(sums, rates)
        )


def _items(sums: Sequence[UsageSum], salts: bool, rates: KnownPrefillRates) -> list[UsageItem]:
    grouped: dict[tuple[int, str], list[UsageSum]] = {}
    for usage_sum in sorted(sums, key=lambda usage_sum: (usage_sum.start, usage_sum.group)):
        grouped.setdefault((usage_sum.start, usage_sum.group), []).append(usage_sum)
    return [
        UsageItem(
            start=float(start),
            group=shown(group) if salts else group,
            **{name: getattr(used, name) for name in (*COLUMNS, "tiers")},
        )
        for (start, group), part in grouped.items()
        for used in (_total(part, rates),)
    ]


def _total(sums: Sequence[UsageSum], rates: KnownPrefillRates) -> UsageCounts:
    total = dict.fromkeys(COUNTERS, 0.0)
    saved_s = unrated = 0.0
    for usage_sum in sums:
        if usage_sum.tier:
            continue
        counts = dict(zip(COUNTERS, usage_sum.counts, strict=True))
        for name, value in counts.items():
            total[name] += value
        rate = rates.of(usage_sum.model, usage_sum.space)
        if rate is None:
            unrated += counts["served_tokens"]
        else:
            saved_s += counts["served_tokens"] / rate
    tiers = _by_tier(sums, total)
    held_kib_s = total.pop("held_kib_s")
    return UsageCounts(
        byte_hours=held_kib_s * 1024 / HOUR_S,
        saved_prefill_s=saved_s,
        unrated_tokens=int(unrated),
        tiers=tiers,
        **{name: int(value) for name, value in total.items()},
    )


def _by_tier(sums: Sequence[UsageSum], total: Mapping[str, float]) -> dict[str, TierUsageCounts]:
    """Return the usage of memory and of each tier. Tokens and bytes that no tier served were served by memory."""
    tiers: dict[str, dict[str, float]] = {}
    memory = {name: total[name] for name in TIER_COUNTERS}
    for usage_sum in sums:
        if not usage_sum.tier:
            continue
        counts = tiers.setdefault(usage_sum.tier, dict.fromkeys(TIER_COUNTERS, 0.0))
        for name, value in zip(TIER_COUNTERS, usage_sum.counts, strict=True):
            counts[name] += value
            if name != "held_kib_s":
                memory[name] -= value
    return {
        name: TierUsageCounts(
            byte_hours=counts["held_kib_s"] * 1024 / HOUR_S,
            served_tokens=max(0, int(counts["served_tokens"])),
            served_bytes=max(0, int(counts["served_bytes"])),
        )
        for name, counts in ((MEMORY, memory), *sorted(tiers.items()))
    }


def _range(step: Step, start: str, end: str, now: float) -> tuple[int, int]:
    """Return the range extended to whole steps, as Unix seconds. Raises Invalid."""
    faults = checks.Faults()
    size = STEPS[step]
    last = faults.check("to", lambda: _moment(end)) if end else now
    default = None if last is None else last - DEFAULT_STEPS[step] * size
    first = faults.check("from", lambda: _moment(start)) if start else default
    if first is not None and last is not None and first >= last:
        faults.add("from", "expected a time before 'to'")
    faults.stop()
    assert first is not None
    assert last is not None
    return int(max(first, 0) // size) * size, -int(-last // size) * size


def _moment(text: str) -> float:
    """Return Unix seconds of a number or an RFC 3339 time. Raises ValueError."""
    try:
        at = float(text) if re.fullmatch(SECONDS, text) else moment(text)
    except (ValueError, OverflowError):
        at = -1.0
    if not 0 <= at < LATEST:
        raise ValueError(f"expected Unix seconds or an RFC 3339 time such as 2026-11-01T00:00:00Z, got {text[:40]!r}")
    return at


def as_csv(report: UsageReport) -> bytes:
    """Return a header and one line per item. Cells that a spreadsheet would read as formulas are escaped. The last
    columns are those of memory and of each tier in the report."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    tiers = list(report.totals.tiers)
    tier_columns = [f"{column}:{tier}" for tier in tiers for column in TIER_COLUMNS]
    writer.writerow(["start", report.group_by, *COLUMNS, *tier_columns])
    for item in report.items:
        start = datetime.fromtimestamp(item.start, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        of_tiers = [item.tiers.get(tier, NO_USE) for tier in tiers]
        cells = [getattr(item, name) for name in COLUMNS]
        cells += [getattr(tier, name) for tier in of_tiers for name in TIER_COLUMNS]
        writer.writerow([start, _plain(item.group), *map(_written, cells)])
    return out.getvalue().encode()


def _plain(text: str) -> str:
    return "'" + text if text.startswith(_FORMULA) else text


def _written(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6f}".rstrip("0").rstrip(".")
