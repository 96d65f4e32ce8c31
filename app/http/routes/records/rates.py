"""/api/v1/rates"""

from typing import Annotated

from litestar import Response, Router, delete, get, put
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody, QueryParameter

from app.http.parameters import Cursor, Limit, Sort
from app.http.preconditions import IfMatch, IfNoneMatch, expected
from app.http.principals import caller
from app.http.problems import declared
from app.schemas.base.listing import PageRequest
from app.schemas.records.rates import RateAnswer, RateList, RatePut
from app.services.records.rates import PrefillRates

_STATES = ("malformed", "invalid", "precondition-failed", "precondition-required")


@get(
    "/",
    operation_id="listRates",
    summary="List prefill rates",
    opt={"role": "viewer"},
    responses=declared("invalid"),
)
async def list_rates(
    rates: NamedDependency[PrefillRates],
    model: Annotated[str | None, QueryParameter(description="Only this model.")] = None,
    sort: Sort = "",
    limit: Limit = 1000,
    cursor: Cursor = "",
) -> RateList:
    return await rates.page(PageRequest(limit, cursor, sort), model)


@get(
    "/{name:str}",
    operation_id="getRate",
    summary="Get a prefill rate",
    opt={"role": "viewer"},
    responses=declared("not-found", "invalid"),
)
async def get_rate(rates: NamedDependency[PrefillRates], name: FromPath[str]) -> Response[RateAnswer]:
    answer = await rates.get(name)
    return Response(answer, headers={"ETag": answer.etag})


@put(
    "/{name:str}",
    operation_id="putRate",
    summary="Set a prefill rate: the tokens per second that a model's engines compute",
    opt={"body": RatePut, "role": "operator"},
    responses={
        201: ResponseSpec(RateAnswer, generate_examples=False, description="The record was created."),
        **declared(*_STATES, "conflict", "unsupported-media-type", "too-large"),
    },
)
async def put_rate(
    rates: NamedDependency[PrefillRates],
    name: FromPath[str],
    data: JSONBody[RatePut],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response[RateAnswer]:
    answer, created = await rates.put(name, data, caller(), expected(if_match, if_none_match))
    return Response(answer, status_code=201 if created else 200, headers={"ETag": answer.etag})


@delete(
    "/{name:str}",
    operation_id="deleteRate",
    summary="Delete a prefill rate",
    opt={"role": "operator"},
    responses=declared("not-found", *_STATES),
)
async def delete_rate(
    rates: NamedDependency[PrefillRates], name: FromPath[str], if_match: IfMatch = None
) -> None:
    await rates.delete(name, caller(), expected(if_match))


router = Router("/rates", route_handlers=[list_rates, get_rate, put_rate, delete_rate], tags=["usage"])
