"""/api/v1/prefixes"""

from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from app.http.operation import operation
from app.http.parameters import Limit, OfTenant
from app.http.principals import caller
from app.schemas.records.prefixes import By, PrefixList
from app.services.records.prefixes import PrefixService


@operation(get, "/", "invalid", "node-unreachable", role="viewer", scoped=True)
async def list_prefixes(
    prefixes: NamedDependency[PrefixService],
    by: Annotated[By, QueryParameter(description="Rank by bytes served, or by hits.")] = "bytes",
    tenant: OfTenant = None,
    limit: Limit = 50,
) -> PrefixList:
    """List the most served prefixes of the last hour over all connected nodes."""
    return await prefixes.page(by, tenant, limit, caller())


router = Router("/prefixes", route_handlers=[list_prefixes], tags=["prefixes"])
