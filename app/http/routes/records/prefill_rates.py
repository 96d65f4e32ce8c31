"""/api/v1/rates"""

from typing import Annotated, Any

from litestar import Response, Router, delete, get, patch, put
from litestar.di import NamedDependency
from litestar.params import Body, JSONBody

from app.http.body import MERGE_PATCH
from app.http.operation import operation
from app.http.parameters import Cursor, DryRun, Limit, OfModel, RecordName, sort_by
from app.http.preconditions import PRECONDITIONS, WRITES, IfMatch, IfNoneMatch, expected, with_etag
from app.http.principals import caller
from app.schemas.base.listing import PageRequest
from app.schemas.records.prefill_rates import RateAnswer, RateList, RatePut
from app.services.records.prefill_rates import PREFILL_RATES, PrefillRates

_Sort = Annotated[str, sort_by(PREFILL_RATES.sortable)]


@operation(get, "/", "invalid", role="viewer")
async def list_rates(
    prefill_rates: NamedDependency[PrefillRates],
    model: OfModel = None,
    sort: _Sort = "",
    limit: Limit = 1000,
    cursor: Cursor = "",
) -> RateList:
    """List prefill rates."""
    return await prefill_rates.page(PageRequest(limit, cursor, sort), model)


@operation(get, "/{name:str}", "not-found", "invalid", role="viewer")
async def get_rate(prefill_rates: NamedDependency[PrefillRates], name: RecordName) -> Response[RateAnswer]:
    """Get a prefill rate."""
    return with_etag(await prefill_rates.get(name))


@operation(put, "/{name:str}", *WRITES, role="operator")
async def put_rate(
    prefill_rates: NamedDependency[PrefillRates],
    name: RecordName,
    data: JSONBody[RatePut],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    dry_run: DryRun = False,
) -> Response[RateAnswer]:
    """Set a prefill rate: the tokens per second that a model's engines compute."""
    state = expected(if_match, if_none_match)
    answer, created = await prefill_rates.put(name, data, caller(), state, dry_run=dry_run)
    return with_etag(answer, created=created)


@operation(patch, "/{name:str}", "not-found", *WRITES, role="operator")
async def patch_rate(
    prefill_rates: NamedDependency[PrefillRates],
    name: RecordName,
    data: Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)],
    if_match: IfMatch = None,
    dry_run: DryRun = False,
) -> Response[RateAnswer]:
    """Change some fields of a prefill rate (JSON merge patch: null resets a field to its default)."""
    answer = await prefill_rates.patch(name, data, caller(), expected(if_match), dry_run=dry_run)
    return with_etag(answer)


@operation(delete, "/{name:str}", "not-found", *PRECONDITIONS, role="operator")
async def delete_rate(prefill_rates: NamedDependency[PrefillRates], name: RecordName, if_match: IfMatch = None) -> None:
    """Delete a prefill rate."""
    await prefill_rates.delete(name, caller(), expected(if_match))


router = Router("/rates", route_handlers=[list_rates, get_rate, put_rate, patch_rate, delete_rate], tags=["usage"])
