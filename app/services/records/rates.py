"""Rates: prefill speeds that operators measured on their engines, used to estimate the prefill seconds that the cache
saved."""

import re
from collections.abc import Iterable

from app.errors import Conflict, FieldError
from app.schemas.base.listing import PageRequest
from app.schemas.records.rates import RateAnswer, RateList, RatePut
from app.services.base import checks
from app.services.base.changes import Changes
from app.services.base.preconditions import ANY, Precondition
from app.services.base.principals import Principal
from app.services.records.record_types import RecordType, columns
from app.store.base.database import Database
from app.store.records import rates
from app.store.records.rates import RateRow

MAX_TOKENS_PER_S = 1e9
_SPACE = re.compile(r"[0-9a-f]{32}", re.ASCII)
RATES = RecordType(noun="rate", row=RateRow, key="name", put=RatePut, written=RatePut.__struct_fields__)


class PrefillRates:
    """Get, put, delete; a put of an identical record changes nothing."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes

    async def get(self, name: str) -> RateAnswer:
        """Return the rate. Raises Invalid, NotFound."""
        checks.pin_name(name)
        row = await self._database.row(RateRow, name)
        if row is None:
            raise RATES.missing(name)
        return _answer(row)

    async def page(self, wanted: PageRequest, model: str | None) -> RateList:
        """Return a page of rates. Raises Invalid."""
        async with self._database.read() as session:
            page = await rates.page(session, wanted, model)
        return RateList([_answer(row) for row in page.rows], page.total, page.next_cursor)

    async def put(
        self, name: str, asked: RatePut, by: Principal, expected: Precondition = ANY
    ) -> tuple[RateAnswer, bool]:
        """Store the record, and return it and whether it is new. Raises Invalid, Conflict, PreconditionFailed,
        PreconditionRequired."""
        checks.pin_name(name)
        _check(asked)
        async with self._changes.begin(by) as change:
            row = await rates.get(change.session, name)
            RATES.check_state(expected, name, row)
            other = await rates.same(change.session, asked.model, asked.space, besides=name)
            if other is not None:
                what = f"space {asked.space}" if asked.space else "all spaces"
                message = f"{other.name!r} is already the rate of {what} of {asked.model!r}; change that record instead"
                raise Conflict(message, [FieldError("model", message)])
            created = row is None
            if row is None and await rates.count(change.session) >= rates.MAX:
                raise Conflict(f"there are already {rates.MAX} rates, which is the maximum")
            row = RATES.write(change, name, row, columns(asked, RATES.written))
        return _answer(row), created

    async def delete(self, name: str, by: Principal, expected: Precondition = ANY) -> None:
        """Delete the record. Raises Invalid, NotFound, PreconditionFailed, PreconditionRequired."""
        checks.pin_name(name)
        async with self._changes.begin(by) as change:
            await RATES.remove(change, await RATES.existing(change, name, expected))


class KnownRates:
    """Rates by model and space."""

    def __init__(self, rows: Iterable[RateRow]) -> None:
        self._rates = {(row.model, row.space): row.prefill_tokens_per_s for row in rows}

    def of(self, model: str, space: str) -> float | None:
        """Return tokens per second: the rate of the space, else of the model; None where neither is set."""
        return self._rates.get((model, space)) or self._rates.get((model, ""))


def _check(asked: RatePut) -> None:
    """Check a request. Raises Invalid."""
    faults = checks.Faults()
    faults.check("model", lambda: checks.model(asked.model))
    faults.check("note", lambda: checks.note(asked.note))
    if asked.space and _SPACE.fullmatch(asked.space) is None:
        faults.add("space", f"expected 32 hex digits in lower case, or nothing, got {asked.space[:40]!r}")
    if not 0 < asked.prefill_tokens_per_s <= MAX_TOKENS_PER_S:
        faults.add(
            "prefill_tokens_per_s",
            f"expected more than 0, at most {MAX_TOKENS_PER_S:,.0f}, got {asked.prefill_tokens_per_s:g}",
        )
    faults.stop()


def _answer(row: RateRow) -> RateAnswer:
    return RateAnswer(
        name=row.name,
        **columns(row, RATES.written),
        etag=RATES.etag(row),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
