"""/api/v1/ceilings"""

from typing import Annotated, Any

from litestar import Response, Router, delete, get, patch, put
from litestar.di import NamedDependency
from litestar.params import Body, JSONBody

from app.http.body import MERGE_PATCH
from app.http.operation import operation
from app.http.parameters import Cursor, DryRun, Limit, NewTenantName, TenantName
from app.http.preconditions import PRECONDITIONS, IfMatch, IfNoneMatch, expected, with_etag
from app.http.principals import caller
from app.schemas.base.listing import PageRequest
from app.schemas.records.ceilings import CeilingAnswer, CeilingList, CeilingPut
from app.services.records.ceilings import Ceilings


@operation(get, "/", "invalid", role="viewer", scoped=True)
async def list_ceilings(ceilings: NamedDependency[Ceilings], limit: Limit = 1000, cursor: Cursor = "") -> CeilingList:
    """List ceilings; callers that are limited to tenants see only those of their tenants."""
    return await ceilings.page(PageRequest(limit, cursor), caller())


@operation(get, "/{tenant:str}", "not-found", "invalid", role="viewer", scoped=True)
async def get_ceiling(ceilings: NamedDependency[Ceilings], tenant: TenantName) -> Response[CeilingAnswer]:
    """Get a tenant's ceiling: bounds for callers that are limited to the tenant."""
    return with_etag(await ceilings.get(tenant, caller()))


@operation(put, "/{tenant:str}", *PRECONDITIONS, role="admin")
async def put_ceiling(
    ceilings: NamedDependency[Ceilings],
    tenant: NewTenantName,
    data: JSONBody[CeilingPut],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    dry_run: DryRun = False,
) -> Response[CeilingAnswer]:
    """Set a tenant's ceiling; quotas above it stay until they are changed."""
    state = expected(if_match, if_none_match)
    answer, created = await ceilings.put(tenant, data, caller(), state, dry_run=dry_run)
    return with_etag(answer, created=created)


@operation(patch, "/{tenant:str}", "not-found", *PRECONDITIONS, role="admin")
async def patch_ceiling(
    ceilings: NamedDependency[Ceilings],
    tenant: TenantName,
    data: Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)],
    if_match: IfMatch = None,
    dry_run: DryRun = False,
) -> Response[CeilingAnswer]:
    """Change some fields of a tenant's ceiling (JSON merge patch: null resets a field to its default)."""
    answer = await ceilings.patch(tenant, data, caller(), expected(if_match), dry_run=dry_run)
    return with_etag(answer)


@operation(delete, "/{tenant:str}", "not-found", *PRECONDITIONS, role="admin")
async def delete_ceiling(ceilings: NamedDependency[Ceilings], tenant: TenantName, if_match: IfMatch = None) -> None:
    """Delete a tenant's ceiling; callers that are limited to the tenant may then not change its quota."""
    await ceilings.delete(tenant, caller(), expected(if_match))


router = Router(
    "/ceilings",
    route_handlers=[list_ceilings, get_ceiling, put_ceiling, patch_ceiling, delete_ceiling],
    tags=["ceilings"],
)
