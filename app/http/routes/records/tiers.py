"""/api/v1/tiers"""

from typing import Annotated, Any

from litestar import Response, Router, delete, get, patch, put
from litestar.di import NamedDependency
from litestar.params import Body, JSONBody

from app.http.body import MERGE_PATCH
from app.http.operation import operation
from app.http.parameters import (
    Cursor,
    Limit,
    OfOwner,
    RecordName,
    TierRecordName,
    Wait,
    in_query,
    sort_by,
    wait_seconds,
)
from app.http.preconditions import PRECONDITIONS, WRITES, IfMatch, IfNoneMatch, expected, with_etag
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.base.listing import PageRequest
from app.schemas.records.tiers import TierAnswer, TierDeletion, TierFilters, TierList, TierPut
from app.services.records.tier_intent import TIERS
from app.services.records.tiers import Tiers

_Sort = Annotated[str, sort_by(TIERS.sortable)]


@operation(get, "/", "invalid", role="viewer")
async def list_tiers(
    tiers: NamedDependency[Tiers],
    kind: Annotated[str | None, in_query("Only tiers of this type.", name="type")] = None,
    managed_by: OfOwner = None,
    sort: _Sort = "",
    limit: Limit = 1000,
    cursor: Cursor = "",
) -> TierList:
    """List tiers, and their state on nodes."""
    return await tiers.page(PageRequest(limit, cursor, sort), TierFilters(kind, managed_by))


@operation(get, "/{name:str}", "not-found", "invalid", role="viewer")
async def get_tier(tiers: NamedDependency[Tiers], name: RecordName) -> Response[TierAnswer]:
    """Get a tier."""
    return with_etag(await tiers.get(name))


@operation(put, "/{name:str}", *WRITES, role="operator")
async def put_tier(
    tiers: NamedDependency[Tiers],
    name: TierRecordName,
    data: JSONBody[TierPut],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    wait: Wait = "",
) -> Response[TierAnswer]:
    """Set a tier; running nodes open it, or change it and keep its blocks."""
    state = expected(if_match, if_none_match)
    with span("tiers.put"):
        answer, created = await tiers.put(name, data, caller(), state, wait_seconds(wait))
    return with_etag(answer, created=created)


@operation(patch, "/{name:str}", "not-found", *WRITES, role="operator")
async def patch_tier(
    tiers: NamedDependency[Tiers],
    name: RecordName,
    data: Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)],
    if_match: IfMatch = None,
    wait: Wait = "",
) -> Response[TierAnswer]:
    """Change some fields of a tier (JSON merge patch: null resets a field to its default)."""
    with span("tiers.patch"):
        answer = await tiers.patch(name, data, caller(), expected(if_match), wait_seconds(wait))
    return with_etag(answer)


@operation(delete, "/{name:str}", "not-found", *PRECONDITIONS, role="operator", status_code=200)
async def delete_tier(
    tiers: NamedDependency[Tiers], name: RecordName, if_match: IfMatch = None, wait: Wait = ""
) -> TierDeletion:
    """Delete a tier; its nodes close it, and its blocks stay where they are."""
    with span("tiers.delete"):
        return await tiers.delete(name, caller(), expected(if_match), wait_seconds(wait))


router = Router("/tiers", route_handlers=[list_tiers, get_tier, put_tier, patch_tier, delete_tier], tags=["tiers"])
