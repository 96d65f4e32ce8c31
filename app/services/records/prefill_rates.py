"""Rates: prefill speeds that operators measured on their engines, used to estimate the prefill seconds that the cache
saved."""

import re
from collections.abc import Iterable
from typing import Any

from app.errors import Conflict, FieldError
from app.observe.catalogue.records import RateChanged, RateCreated, RateDeleted
from app.schemas.base.listing import PageRequest
from app.schemas.records.prefill_rates import RateAnswer, RateList, RatePut
from app.services.base import checks
from app.services.base.changes import Action, Changes
from app.services.base.merge import patched
from app.services.base.preconditions import ANY, Precondition, state_of
from app.services.base.principals import Principal
from app.services.records.record_types import RecordType, columns
from app.store.base.database import Database
from app.store.records import prefill_rates
from app.store.records.prefill_rates import PrefillRateRow

MAX_TOKENS_PER_S = 1e9
_SPACE = re.compile(r"[0-9a-f]{32}", re.ASCII)
_EVENTS: dict[Action, type[RateCreated | RateChanged | RateDeleted]] = {
    "create": RateCreated,
    "update": RateChanged,
    "delete": RateDeleted,
}
PREFILL_RATES = RecordType(
    noun="rate",
    row=PrefillRateRow,
    key="name",
    put=RatePut,
    written=RatePut.__struct_fields__,
    event=lambda action, name, _values, _generation: _EVENTS[action](name),
)


class PrefillRates:
    """Get, put, delete; a put of an identical record changes nothing."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes

    async def get(self, name: str) -> RateAnswer:
        """Return the rate. Raises Invalid, NotFound."""
        checks.pin_name(name)
        row = await self._database.row(PrefillRateRow, name)
        if row is None:
            raise PREFILL_RATES.missing(name)
        return _answer(row)

    async def page(self, page_request: PageRequest, model: str | None) -> RateList:
        """Return a page of rates. Raises Invalid."""
        async with self._database.read() as session:
            page = await prefill_rates.page(session, page_request, model)
        return RateList([_answer(row) for row in page.rows], page.total, page.next_cursor)

    async def put(
        self, name: str, request: RatePut, by: Principal, expected: Precondition = ANY, *, dry_run: bool = False
    ) -> tuple[RateAnswer, bool]:
        """Store the record unless it is a dry run. Return it and whether it is new. Raises Invalid, Conflict,
        PreconditionFailed, PreconditionRequired."""
        checks.pin_name(name)
        model = _check(request)
        async with self._changes.begin(by, dry_run=dry_run) as change:
            row = await prefill_rates.get(change.session, name)
            PREFILL_RATES.check_state(expected, name, row)
            other = await prefill_rates.same(change.session, model, request.space, besides=name)
            if other is not None:
                scope = f"space {request.space}" if request.space else "all spaces"
                message = f"{other.name!r} is already the rate of {scope} of {model!r}; change it instead"
                raise Conflict(message, [FieldError("model", message)])
            created = row is None
            if row is None and await prefill_rates.count(change.session) >= prefill_rates.MAX:
                raise Conflict(f"there are already {prefill_rates.MAX} rates, which is the maximum")
            row = PREFILL_RATES.write(change, name, row, columns(request, PREFILL_RATES.written))
        return _answer(row), created

    async def patch(
        self, name: str, patch: dict[str, Any], by: Principal, expected: Precondition = ANY, *, dry_run: bool = False
    ) -> RateAnswer:
        """Apply a JSON merge patch. Raises what `put` raises, and NotFound."""
        current = await self.get(name)
        expected.check(PREFILL_RATES.called(name), current.etag)
        request = patched(RatePut, columns(current, PREFILL_RATES.written), patch)
        answer, _ = await self.put(name, request, by, state_of(current.etag), dry_run=dry_run)
        return answer

    async def delete(self, name: str, by: Principal, expected: Precondition = ANY) -> None:
        """Delete the record. Raises Invalid, NotFound, PreconditionFailed, PreconditionRequired."""
        checks.pin_name(name)
        async with self._changes.begin(by) as change:
            await PREFILL_RATES.remove(change, await PREFILL_RATES.existing(change, name, expected))


class KnownPrefillRates:
    """Rates by model and space."""

    def __init__(self, rows: Iterable[PrefillRateRow]) -> None:
        self._rates = {(row.model, row.space): row.prefill_tokens_per_s for row in rows}

    def of(self, model: str, space: str) -> float | None:
        """Return tokens per second: the rate of the space, else of the model; None where neither is set."""
        return self._rates.get((model, space)) or self._rates.get((model, ""))


def _check(request: RatePut) -> str:
    """Check a request, and return its model. Raises Invalid with every fault found."""
    faults = checks.Faults()
    model = faults.check("model", lambda: checks.model(checks.given(request.model, "text")))
    faults.check("note", lambda: checks.note(request.note))
    if request.space and _SPACE.fullmatch(request.space) is None:
        faults.add("space", f"expected 32 hex digits in lower case, or nothing, got {request.space[:40]!r}")
    tokens_per_s = request.prefill_tokens_per_s
    faults.check("prefill_tokens_per_s", lambda: _tokens_per_s(checks.given(tokens_per_s, "a number")))
    faults.stop()
    assert model is not None
    return model


def _tokens_per_s(rate: float) -> float:
    """Check a rate. Raises ValueError."""
    if not 0 < rate <= MAX_TOKENS_PER_S:
        raise ValueError(f"expected more than 0, at most {MAX_TOKENS_PER_S:,.0f}, got {rate:g}")
    return rate


def _answer(row: PrefillRateRow) -> RateAnswer:
    return RateAnswer(
        name=row.name,
        **columns(row, PREFILL_RATES.written),
        etag=PREFILL_RATES.etag(row),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
