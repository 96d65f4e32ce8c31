"""/api/v1/tenants"""

from typing import Annotated
from urllib.parse import quote

from litestar import Response, Router, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from app.http.middleware.turns import in_turn
from app.http.parameters import Cursor, Limit, Sort, Wait, wait_seconds
from app.http.principals import caller
from app.http.problems import declared
from app.observe.trace import span
from app.schemas.base.listing import PageRequest
from app.schemas.records.quotas import QuotaAnswer
from app.schemas.records.tenants import AdoptPost, TenantAnswer, TenantList
from app.services.records.tenants import Tenants


@get(
    "/",
    operation_id="listTenants",
    summary="List tenants that hold blocks or have a quota or a pin",
    opt={"role": "viewer", "scoped": True},
    middleware=[in_turn],
    responses=declared("invalid"),
)
async def list_tenants(
    tenants: NamedDependency[Tenants],
    managed: Annotated[
        bool | None,
        QueryParameter(description="Only tenants with a quota (true), or only tenants without one (false)."),
    ] = None,
    sort: Sort = "",
    limit: Limit = 1000,
    cursor: Cursor = "",
) -> TenantList:
    return await tenants.page(PageRequest(limit, cursor, sort), managed, caller())


@get(
    "/{tenant:str}",
    operation_id="getTenant",
    summary="Get a tenant's usage and limits",
    opt={"role": "viewer", "scoped": True},
    responses=declared("not-found", "invalid"),
)
async def get_tenant(tenants: NamedDependency[Tenants], tenant: FromPath[str]) -> TenantAnswer:
    return await tenants.get(tenant, caller())


@post(
    "/{tenant:str}/adopt",
    operation_id="adoptTenant",
    summary="Create a quota without a limit for a tenant that has none",
    opt={"body": AdoptPost, "role": "operator", "scoped": True},
    responses=declared(
        "not-found", "malformed", "invalid", "conflict", "floors-exceed-capacity", "unsupported-media-type", "too-large"
    ),
)
async def adopt_tenant(
    tenants: NamedDependency[Tenants], tenant: FromPath[str], data: JSONBody[AdoptPost], wait: Wait = ""
) -> Response[QuotaAnswer]:
    with span("tenants.adopt"):
        answer = await tenants.adopt(tenant, data, caller(), wait_seconds(wait))
    headers = {"ETag": answer.etag, "Location": f"/api/v1/quotas/{quote(answer.tenant, safe='')}"}
    return Response(answer, headers=headers)


router = Router("/tenants", route_handlers=[list_tenants, get_tenant, adopt_tenant], tags=["tenants"])
