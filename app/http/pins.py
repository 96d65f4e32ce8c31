"""/api/v1/pins"""

from litestar import Response, Router, delete, get, put
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody

from app.http.edge import author
from app.http.parameters import Limit, Offset, Wait, wait_seconds
from app.http.problems import declared
from app.observe.trace import span
from app.schemas.pins import PinAnswer, PinList, PinPut
from app.services.pins import Pins


@get("/", operation_id="listPins", summary="All pins, by name", responses=declared("invalid"))
async def list_pins(pins: NamedDependency[Pins], limit: Limit = 1000, offset: Offset = 0) -> PinList:
    return await pins.page(limit, offset)


@get("/{name:str}", operation_id="getPin", summary="One pin", responses=declared("not-found", "invalid"))
async def get_pin(pins: NamedDependency[Pins], name: FromPath[str]) -> PinAnswer:
    return await pins.get(name)


@put(
    "/{name:str}",
    operation_id="putPin",
    summary="Pin a prefix",
    opt={"body": PinPut},
    responses={
        201: ResponseSpec(PinAnswer, generate_examples=False, description="The record is new."),
        **declared("malformed", "invalid", "unsupported-media-type", "too-large", "node-unreachable"),
    },
)
async def put_pin(
    pins: NamedDependency[Pins], name: FromPath[str], data: JSONBody[PinPut], wait: Wait = ""
) -> Response[PinAnswer]:
    with span("pins.put"):
        answer, created = await pins.put(name, data, author(), wait_seconds(wait))
    return Response(answer, status_code=201 if created else 200)


@delete(
    "/{name:str}",
    operation_id="deletePin",
    summary="Forget a pin; its blocks are then like any others",
    responses=declared("not-found", "invalid"),
)
async def delete_pin(pins: NamedDependency[Pins], name: FromPath[str], wait: Wait = "") -> None:
    with span("pins.delete"):
        await pins.delete(name, author(), wait_seconds(wait))


router = Router("/pins", route_handlers=[list_pins, get_pin, put_pin, delete_pin], tags=["pins"])
