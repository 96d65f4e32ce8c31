"""/api/v1/quotas"""

from typing import Annotated, Any

from litestar import Response, Router, delete, get, patch, put
from litestar.di import NamedDependency
from litestar.params import Body, JSONBody, QueryParameter

from app.http.body import MERGE_PATCH
from app.http.operation import operation
from app.http.parameters import Cursor, Limit, NewTenantName, OfOwner, TenantName, Wait, sort_by, wait_seconds
from app.http.preconditions import PRECONDITIONS, IfMatch, IfNoneMatch, expected, with_etag
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.base.listing import PageRequest
from app.schemas.records.quotas import QuotaAnswer, QuotaFilters, QuotaList, QuotaPut
from app.services.records.quota_intent import QUOTAS
from app.services.records.quotas import Quotas
from dataplane.protocol.control.records import Mode

_WRITES = (*PRECONDITIONS, "floors-exceed-capacity", "conflict")

_Sort = Annotated[str, sort_by(QUOTAS.sortable)]


@operation(get, "/", "invalid", role="viewer", scoped=True)
async def list_quotas(
    quotas: NamedDependency[Quotas],
    mode: Annotated[Mode | None, QueryParameter(description="Only quotas of this mode.")] = None,
    managed_by: OfOwner = None,
    sort: _Sort = "",
    limit: Limit = 1000,
    cursor: Cursor = "",
) -> QuotaList:
    """List quotas."""
    return await quotas.page(PageRequest(limit, cursor, sort), QuotaFilters(mode, managed_by), caller())


@operation(get, "/{tenant:str}", "not-found", "invalid", role="viewer", scoped=True)
async def get_quota(quotas: NamedDependency[Quotas], tenant: TenantName) -> Response[QuotaAnswer]:
    """Get a tenant's quota."""
    return with_etag(await quotas.get(tenant, caller()))


@operation(put, "/{tenant:str}", *_WRITES, role="operator", scoped=True)
async def put_quota(
    quotas: NamedDependency[Quotas],
    tenant: NewTenantName,
    data: JSONBody[QuotaPut],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    wait: Wait = "",
) -> Response[QuotaAnswer]:
    """Set a tenant's quota."""
    state = expected(if_match, if_none_match)
    with span("quotas.put"):
        answer, created = await quotas.put(tenant, data, caller(), state, wait_seconds(wait))
    return with_etag(answer, created=created)


@operation(patch, "/{tenant:str}", "not-found", *_WRITES, role="operator", scoped=True)
async def patch_quota(
    quotas: NamedDependency[Quotas],
    tenant: TenantName,
    data: Annotated[dict[str, Any], Body(media_type=MERGE_PATCH)],
    if_match: IfMatch = None,
    wait: Wait = "",
) -> Response[QuotaAnswer]:
    """Change some fields of a tenant's quota (JSON merge patch: null resets a field to its default)."""
    with span("quotas.patch"):
        answer = await quotas.patch(tenant, data, caller(), expected(if_match), wait_seconds(wait))
    return with_etag(answer)


@operation(delete, "/{tenant:str}", "not-found", *PRECONDITIONS, role="operator", scoped=True)
async def delete_quota(
    quotas: NamedDependency[Quotas], tenant: TenantName, if_match: IfMatch = None, wait: Wait = ""
) -> None:
    """Delete a tenant's quota; the tenant may then use free memory without a limit or a floor."""
    with span("quotas.delete"):
        await quotas.delete(tenant, caller(), expected(if_match), wait_seconds(wait))


router = Router(
    "/quotas", route_handlers=[list_quotas, get_quota, put_quota, patch_quota, delete_quota], tags=["quotas"]
)
