"""/api/v1/quotas"""

from litestar import Response, Router, delete, get, put
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody

from app.http.edge import author
from app.http.parameters import Limit, Offset, Wait, wait_seconds
from app.http.problems import declared
from app.observe.trace import span
from app.schemas.quotas import QuotaAnswer, QuotaList, QuotaPut
from app.services.quotas import Quotas


@get("/", operation_id="listQuotas", summary="All quotas, by tenant", responses=declared("invalid"))
async def list_quotas(quotas: NamedDependency[Quotas], limit: Limit = 1000, offset: Offset = 0) -> QuotaList:
    return await quotas.page(limit, offset)


@get(
    "/{tenant:str}",
    operation_id="getQuota",
    summary="One tenant's quota",
    responses=declared("not-found", "invalid"),
)
async def get_quota(quotas: NamedDependency[Quotas], tenant: FromPath[str]) -> QuotaAnswer:
    return await quotas.get(tenant)


@put(
    "/{tenant:str}",
    operation_id="putQuota",
    summary="Set a tenant's quota",
    opt={"body": QuotaPut},
    responses={
        201: ResponseSpec(QuotaAnswer, generate_examples=False, description="The record is new."),
        **declared("malformed", "invalid", "floors-exceed-capacity", "unsupported-media-type", "too-large"),
    },
)
async def put_quota(
    quotas: NamedDependency[Quotas], tenant: FromPath[str], data: JSONBody[QuotaPut], wait: Wait = ""
) -> Response[QuotaAnswer]:
    with span("quotas.put"):
        answer, created = await quotas.put(tenant, data, author(), wait_seconds(wait))
    return Response(answer, status_code=201 if created else 200)


@delete(
    "/{tenant:str}",
    operation_id="deleteQuota",
    summary="Forget a tenant's quota; the tenant may then use what is free",
    responses=declared("not-found", "invalid"),
)
async def delete_quota(quotas: NamedDependency[Quotas], tenant: FromPath[str], wait: Wait = "") -> None:
    with span("quotas.delete"):
        await quotas.delete(tenant, author(), wait_seconds(wait))


router = Router("/quotas", route_handlers=[list_quotas, get_quota, put_quota, delete_quota], tags=["quotas"])
