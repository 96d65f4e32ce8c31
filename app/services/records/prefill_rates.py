"""Rates: prefill speeds that operators measured on their engines, used to estimate the prefill seconds that the cache
saved."""

import re
from collections.abc import Iterable

from app.errors import Conflict, FieldError
from app.schemas.base.fields import LOWER_SPACE
from app.schemas.records.prefill_rates import MAX_TOKENS_PER_S, RateAnswer, RateList, RatePut
from app.services.base import checks
from app.services.base.changes import Change
from app.services.base.principals import Principal
from app.services.records.record_types import RecordType, Values, columns
from app.services.records.records import RecordService
from app.store.records import prefill_rates
from app.store.records.prefill_rates import PrefillRateRow

PREFILL_RATES = RecordType(
    noun="rate",
    row=PrefillRateRow,
    sortable=prefill_rates.SORTABLE,
    key="name",
    put=RatePut,
    answer=RateAnswer,
    listing=RateList,
    written=RatePut.__struct_fields__,
)


def _tokens_per_s(rate: float) -> float:
    """Check a rate. Raises ValueError."""
    if not 0 < rate <= MAX_TOKENS_PER_S:
        raise ValueError(f"expected more than 0, at most {MAX_TOKENS_PER_S:,.0f}, got {rate:g}")
    return rate


class PrefillRates(RecordService[PrefillRateRow, RatePut, RateAnswer]):
    kind = PREFILL_RATES

    async def _columns(self, name: str, intent: RatePut, by: Principal) -> Values:
        faults = checks.Faults()
        faults.check("model", lambda: checks.model(checks.given(intent.model, "text")))
        faults.check("note", lambda: checks.note(intent.note))
        if intent.space and re.fullmatch(LOWER_SPACE, intent.space) is None:
            faults.add("space", f"expected 32 hex digits in lower case, or nothing, got {intent.space[:40]!r}")
        tokens_per_s = intent.prefill_tokens_per_s
        faults.check("prefill_tokens_per_s", lambda: _tokens_per_s(checks.given(tokens_per_s, "a number")))
        faults.stop()
        return columns(intent, PREFILL_RATES.written)

    async def _store(self, change: Change, key: str, row: PrefillRateRow | None, values: Values) -> PrefillRateRow:
        """Check that no other rate is of the same model and space, and the number of rates."""
        model, space = values["model"], values["space"]
        existing = await prefill_rates.same(change.session, model, space, excluded=key)
        if existing is not None:
            scope = f"space {space}" if space else "all spaces"
            message = f"{existing.name!r} is already the rate of {scope} of {model!r}; change it instead"
            raise Conflict(message, [FieldError("model", message)])
        if row is None and await prefill_rates.count(change.session) >= prefill_rates.MAX:
            raise Conflict(f"there are already {prefill_rates.MAX} rates, which is the maximum")
        return await super()._store(change, key, row, values)


class KnownPrefillRates:
    """Rates by model and space."""

    def __init__(self, rows: Iterable[PrefillRateRow]) -> None:
        self._rates = {(row.model, row.space): row.prefill_tokens_per_s for row in rows}

    def of(self, model: str, space: str) -> float | None:
        """Return tokens per second: the rate of the space, else of the model; None where neither is set."""
        return self._rates.get((model, space)) or self._rates.get((model, ""))
