"""/api/v1/pins"""

from typing import Annotated

from litestar import Response, Router, delete, get, put
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody, QueryParameter

from app.http.callers import caller
from app.http.parameters import Cursor, Limit, Sort, Wait, wait_seconds
from app.http.problems import declared
from app.observe.trace import span
from app.schemas.pins import PinAnswer, PinList, PinPut
from app.services.checks import tenant_in_path
from app.services.pins import Pins
from app.store.listing import Wanted
from app.store.pins import Filters
from dataplane.protocol.control import Strength


@get(
    "/",
    operation_id="listPins",
    summary="Pins, by name",
    opt={"role": "viewer", "scoped": True},
    responses=declared("invalid"),
)
async def list_pins(
    pins: NamedDependency[Pins],
    tenant: Annotated[str | None, QueryParameter(description="Only of this tenant, as shown.")] = None,
    model: Annotated[str | None, QueryParameter(description="Only of this model.")] = None,
    strength: Annotated[Strength | None, QueryParameter(description="Only of this strength.")] = None,
    managed_by: Annotated[str | None, QueryParameter(description="Only of this owner.")] = None,
    sort: Sort = "",
    limit: Limit = 1000,
    cursor: Cursor = "",
) -> PinList:
    salt = None if tenant is None else tenant_in_path(tenant)
    filters = Filters(salt, model, strength, managed_by)
    return await pins.page(Wanted(limit, cursor, sort), filters, caller())


@get(
    "/{name:str}",
    operation_id="getPin",
    summary="One pin",
    opt={"role": "viewer", "scoped": True},
    responses=declared("not-found", "invalid"),
)
async def get_pin(pins: NamedDependency[Pins], name: FromPath[str]) -> PinAnswer:
    return await pins.get(name, caller())


@put(
    "/{name:str}",
    operation_id="putPin",
    summary="Pin a prefix",
    opt={"body": PinPut, "role": "operator", "scoped": True},
    responses={
        201: ResponseSpec(PinAnswer, generate_examples=False, description="The record is new."),
        **declared("malformed", "invalid", "unsupported-media-type", "too-large", "node-unreachable"),
    },
)
async def put_pin(
    pins: NamedDependency[Pins], name: FromPath[str], data: JSONBody[PinPut], wait: Wait = ""
) -> Response[PinAnswer]:
    with span("pins.put"):
        answer, created = await pins.put(name, data, caller(), wait_seconds(wait))
    return Response(answer, status_code=201 if created else 200)


@delete(
    "/{name:str}",
    operation_id="deletePin",
    summary="Forget a pin; its blocks are then like any others",
    opt={"role": "operator", "scoped": True},
    responses=declared("not-found", "invalid"),
)
async def delete_pin(pins: NamedDependency[Pins], name: FromPath[str], wait: Wait = "") -> None:
    with span("pins.delete"):
        await pins.delete(name, caller(), wait_seconds(wait))


router = Router("/pins", route_handlers=[list_pins, get_pin, put_pin, delete_pin], tags=["pins"])
