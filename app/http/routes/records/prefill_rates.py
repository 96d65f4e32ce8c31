"""/api/v1/rates"""

from typing import Annotated, Any

from litestar import Response, Router, delete, get, patch, put
from litestar.di import NamedDependency
from litestar.params import Body, FromPath, JSONBody, QueryParameter

from app.http.body import MERGE_PATCH
from app.http.middleware.turns import in_turn
from app.http.parameters import Cursor, DryRun, Limit, Sort
from app.http.preconditions import IfMatch, IfNoneMatch, expected
from app.http.principals import caller
from app.http.problems import declared
from app.http.record_responses import PRECONDITIONS, WRITES, declared_put, with_etag
from app.schemas.base.listing import PageRequest
from app.schemas.records.prefill_rates import RateAnswer, RateList, RatePut
from app.services.records.prefill_rates import PrefillRates


@get(
    "/",
    operation_id="listRates",
    summary="List prefill rates",
    opt={"role": "viewer"},
    middleware=[in_turn],
    responses=declared("invalid"),
)
async def list_rates(
    prefill_rates: NamedDependency[PrefillRates],
    model: Annotated[str | None, QueryParameter(description="Only this model.")] = None,
    sort: Sort = "",
    limit: Limit = 1000,
    cursor: Cursor = "",
) -> RateList:
    return await prefill_rates.page(PageRequest(limit, cursor, sort), model)


@get(
    "/{name:str}",
    operation_id="getRate",
    summary="Get a prefill rate",
    opt={"role": "viewer"},
    responses=declared("not-found", "invalid"),
)
async def get_rate(prefill_rates: NamedDependency[PrefillRates], name: FromPath[str]) -> Response[RateAnswer]:
    return with_etag(await prefill_rates.get(name))


@put(
    "/{name:str}",
    operation_id="putRate",
    summary="Set a prefill rate: the tokens per second that a model's engines compute",
    opt={"body": RatePut, "role": "operator"},
    responses=declared_put(RateAnswer),
)
async def put_rate(
    prefill_rates: NamedDependency[PrefillRates],
    name: FromPath[str],
    data: JSONBody[RatePut],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    dry_run: DryRun = False,
) -> Response[RateAnswer]:
    state = expected(if_match, if_none_match)
    answer, created = await prefill_rates.put(name, data, caller(), state, dry_run=dry_run)
    return with_etag(answer, created=created)


@patch(
    "/{name:str}",
    operation_id="patchRate",
    summary="Change some fields of a prefill rate (JSON merge patch: null resets a field to its default)",
    opt={"body": dict[str, Any], "role": "operator"},
    responses=declared("not-found", *WRITES),
)
async def patch_rate(
    prefill_rates: NamedDependency[PrefillRates],
    name: FromPath[str],
    data: Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)],
    if_match: IfMatch = None,
    dry_run: DryRun = False,
) -> Response[RateAnswer]:
    answer = await prefill_rates.patch(name, data, caller(), expected(if_match), dry_run=dry_run)
    return with_etag(answer)


@delete(
    "/{name:str}",
    operation_id="deleteRate",
    summary="Delete a prefill rate",
    opt={"role": "operator"},
    responses=declared("not-found", *PRECONDITIONS),
)
async def delete_rate(
    prefill_rates: NamedDependency[PrefillRates], name: FromPath[str], if_match: IfMatch = None
) -> None:
    await prefill_rates.delete(name, caller(), expected(if_match))


router = Router("/rates", route_handlers=[list_rates, get_rate, put_rate, patch_rate, delete_rate], tags=["usage"])
