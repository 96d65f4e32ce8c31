"""/api/v1/tenants"""

from typing import Annotated
from urllib.parse import quote

from litestar import Response, Router, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from app.http.operation import operation
from app.http.parameters import Cursor, Limit, NewTenantName, TenantName, Wait, sort_by, wait_seconds
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.base.listing import PageRequest
from app.schemas.records.quotas import QuotaAnswer
from app.schemas.records.tenants import AdoptPost, TenantAnswer, TenantList
from app.services.records.tenants import SORTABLE, Tenants

_Sort = Annotated[str, sort_by(SORTABLE)]


@operation(get, "/", "invalid", role="viewer", scoped=True)
async def list_tenants(
    tenants: NamedDependency[Tenants],
    managed: Annotated[
        bool | None,
        QueryParameter(description="Only tenants with a quota (true), or only tenants without one (false)."),
    ] = None,
    sort: _Sort = "",
    limit: Limit = 1000,
    cursor: Cursor = "",
) -> TenantList:
    """List tenants that hold blocks or have a quota or a pin."""
    return await tenants.page(PageRequest(limit, cursor, sort), managed, caller())


@operation(get, "/{tenant:str}", "not-found", "invalid", role="viewer", scoped=True)
async def get_tenant(tenants: NamedDependency[Tenants], tenant: TenantName) -> TenantAnswer:
    """Get a tenant's usage and limits."""
    return await tenants.get(tenant, caller())


@operation(
    post,
    "/{tenant:str}/adopt",
    "not-found",
    "conflict",
    "floors-exceed-capacity",
    role="operator",
    scoped=True,
    status_code=201,
)
async def adopt_tenant(
    tenants: NamedDependency[Tenants], tenant: NewTenantName, data: JSONBody[AdoptPost], wait: Wait = ""
) -> Response[QuotaAnswer]:
    """Create a quota without a limit for a tenant that has none."""
    with span("tenants.adopt"):
        answer = await tenants.adopt(tenant, data, caller(), wait_seconds(wait))
    headers = {"ETag": answer.etag, "Location": f"/api/v1/quotas/{quote(answer.tenant, safe='')}"}
    return Response(answer, headers=headers)


router = Router("/tenants", route_handlers=[list_tenants, get_tenant, adopt_tenant], tags=["tenants"])
