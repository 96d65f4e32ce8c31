"""/api/v1/ceilings"""

from typing import Annotated, Any

from litestar import Response, Router, delete, get, patch, put
from litestar.di import NamedDependency
from litestar.params import Body, FromPath, JSONBody

from app.http.body import MERGE_PATCH
from app.http.middleware.turns import in_turn
from app.http.parameters import Cursor, DryRun, Limit
from app.http.preconditions import IfMatch, IfNoneMatch, expected
from app.http.principals import caller
from app.http.problems import declared
from app.http.record_responses import PRECONDITIONS, declared_put, with_etag
from app.schemas.base.listing import PageRequest
from app.schemas.records.ceilings import CeilingAnswer, CeilingList, CeilingPut
from app.services.records.ceilings import Ceilings

_WRITES = (*PRECONDITIONS, "unsupported-media-type", "too-large")


@get(
    "/",
    operation_id="listCeilings",
    summary="List ceilings; callers that are limited to tenants see only those of their tenants",
    opt={"role": "viewer", "scoped": True},
    middleware=[in_turn],
    responses=declared("invalid"),
)
async def list_ceilings(ceilings: NamedDependency[Ceilings], limit: Limit = 1000, cursor: Cursor = "") -> CeilingList:
    return await ceilings.page(PageRequest(limit, cursor), caller())


@get(
    "/{tenant:str}",
    operation_id="getCeiling",
    summary="Get a tenant's ceiling: bounds for callers that are limited to the tenant",
    opt={"role": "viewer", "scoped": True},
    responses=declared("not-found", "invalid"),
)
async def get_ceiling(ceilings: NamedDependency[Ceilings], tenant: FromPath[str]) -> Response[CeilingAnswer]:
    return with_etag(await ceilings.get(tenant, caller()))


@put(
    "/{tenant:str}",
    operation_id="putCeiling",
    summary="Set a tenant's ceiling; quotas above it stay until they are changed",
    opt={"body": CeilingPut, "role": "admin"},
    responses=declared_put(CeilingAnswer, *_WRITES),
)
async def put_ceiling(
    ceilings: NamedDependency[Ceilings],
    tenant: FromPath[str],
    data: JSONBody[CeilingPut],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    dry_run: DryRun = False,
) -> Response[CeilingAnswer]:
    state = expected(if_match, if_none_match)
    answer, created = await ceilings.put(tenant, data, caller(), state, dry_run=dry_run)
    return with_etag(answer, created=created)


@patch(
    "/{tenant:str}",
    operation_id="patchCeiling",
    summary=("Change some fields of a tenant's ceiling (JSON merge patch: null resets a field to its default)"),
    opt={"body": dict[str, Any], "role": "admin"},
    responses=declared("not-found", *_WRITES),
)
async def patch_ceiling(
    ceilings: NamedDependency[Ceilings],
    tenant: FromPath[str],
    data: Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)],
    if_match: IfMatch = None,
    dry_run: DryRun = False,
) -> Response[CeilingAnswer]:
    answer = await ceilings.patch(tenant, data, caller(), expected(if_match), dry_run=dry_run)
    return with_etag(answer)


@delete(
    "/{tenant:str}",
    operation_id="deleteCeiling",
    summary=("Delete a tenant's ceiling; callers that are limited to the tenant may then not change its quota"),
    opt={"role": "admin"},
    responses=declared("not-found", *PRECONDITIONS),
)
async def delete_ceiling(ceilings: NamedDependency[Ceilings], tenant: FromPath[str], if_match: IfMatch = None) -> None:
    await ceilings.delete(tenant, caller(), expected(if_match))


router = Router(
    "/ceilings",
    route_handlers=[list_ceilings, get_ceiling, put_ceiling, patch_ceiling, delete_ceiling],
    tags=["ceilings"],
)
