"""/api/v1/pins"""

from typing import Annotated, Any

from litestar import Response, Router, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import Body, JSONBody, QueryParameter

from app.http.body import MERGE_PATCH
from app.http.operation import operation
from app.http.parameters import (
    Cursor,
    DryRun,
    Limit,
    OfModel,
    OfOwner,
    OfTenant,
    RecordName,
    Wait,
    sort_by,
    wait_seconds,
)
from app.http.preconditions import PRECONDITIONS, WRITES, IfMatch, IfNoneMatch, expected, with_etag
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.base.listing import PageRequest
from app.schemas.records.pins import PinAnswer, PinExtend, PinFilters, PinKeys, PinList, PinPut, PinSource
from app.services.base.checks import tenant_in_path
from app.services.records.pin_intent import PINS
from app.services.records.pins import Pins
from dataplane.protocol.control.records import Strength, Tier

EXTEND = ":extend"

_Sort = Annotated[str, sort_by(PINS.sortable)]


@operation(get, "/", "invalid", role="viewer", scoped=True)
async def list_pins(
    pins: NamedDependency[Pins],
    tenant: OfTenant = None,
    model: OfModel = None,
    strength: Annotated[Strength | None, QueryParameter(description="Only pins of this strength.")] = None,
    tier: Annotated[Tier | None, QueryParameter(description="Only pins of this tier.")] = None,
    managed_by: OfOwner = None,
    sort: _Sort = "",
    limit: Limit = 1000,
    cursor: Cursor = "",
) -> PinList:
    """List pins."""
    salt = None if tenant is None else tenant_in_path(tenant)
    filters = PinFilters(salt, model, strength, tier, managed_by)
    return await pins.page(PageRequest(limit, cursor, sort), filters, caller())


@operation(get, "/{name:str}", "not-found", "invalid", role="viewer", scoped=True)
async def get_pin(pins: NamedDependency[Pins], name: RecordName) -> Response[PinAnswer]:
    """Get a pin."""
    return with_etag(await pins.get(name, caller()))


@operation(get, "/{name:str}/keys", "not-found", "invalid", role="viewer", scoped=True)
async def get_pin_keys(pins: NamedDependency[Pins], name: RecordName) -> PinKeys:
    """Get the keys of a pin."""
    return await pins.keys(name, caller())


@operation(put, "/{name:str}", *WRITES, "node-unreachable", role="operator", scoped=True)
async def put_pin(
    pins: NamedDependency[Pins],
    name: RecordName,
    data: JSONBody[PinPut],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    wait: Wait = "",
) -> Response[PinAnswer]:
    """Pin a prefix."""
    state = expected(if_match, if_none_match)
    with span("pins.put"):
        answer, created = await pins.put(name, data, caller(), state, wait_seconds(wait))
    return with_etag(answer, created=created)


@operation(patch, "/{name:str}", "not-found", *WRITES, role="operator", scoped=True, opt={"kept": PinSource})
async def patch_pin(
    pins: NamedDependency[Pins],
    name: RecordName,
    data: Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)],
    if_match: IfMatch = None,
    wait: Wait = "",
    dry_run: DryRun = False,
) -> Response[PinAnswer]:
    """Change a pin's strength, tier, expiry or note (JSON merge patch); the pinned prefix stays the same."""
    state, seconds = expected(if_match), wait_seconds(wait)
    with span("pins.patch"):
        answer = await pins.patch(name, data, caller(), state, seconds, dry_run=dry_run)
    return with_etag(answer)


@operation(post, "/{name:str}", "not-found", "conflict", role="operator", scoped=True, opt={"suffix": EXTEND})
async def extend_pin(
    pins: NamedDependency[Pins], name: RecordName, data: JSONBody[PinExtend], wait: Wait = ""
) -> Response[PinAnswer]:
    """Extend a pin to at least `ttl_s` from now."""
    with span("pins.extend"):
        answer = await pins.extend(name.removesuffix(EXTEND), data, caller(), wait_seconds(wait))
    return with_etag(answer)


@operation(delete, "/{name:str}", "not-found", *PRECONDITIONS, role="operator", scoped=True)
async def delete_pin(pins: NamedDependency[Pins], name: RecordName, if_match: IfMatch = None, wait: Wait = "") -> None:
    """Delete a pin; its blocks may then be evicted like any others."""
    with span("pins.delete"):
        await pins.delete(name, caller(), expected(if_match), wait_seconds(wait))


router = Router(
    "/pins",
    route_handlers=[list_pins, get_pin, get_pin_keys, put_pin, patch_pin, extend_pin, delete_pin],
    tags=["pins"],
)
