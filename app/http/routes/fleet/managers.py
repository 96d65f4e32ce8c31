"""/api/v1/managers, and /api/v1/pushes: what they sent to nodes"""

from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from app.http.operation import operation
from app.http.parameters import Limit, OfNode
from app.schemas.fleet.managers import ManagerList
from app.schemas.fleet.pushes import PushList, PushStateName, TypeName
from app.services.fleet.managers import Managers
from app.services.fleet.pushes import Pushes


@operation(get, "/", role="viewer")
async def list_managers(managers: NamedDependency[Managers]) -> ManagerList:
    """List the managers that share the database, and the one that pushes to nodes."""
    return await managers.page()


@operation(get, "/", "invalid", role="viewer")
async def list_pushes(
    pushes: NamedDependency[Pushes],
    kind: Annotated[TypeName | None, QueryParameter(name="type", description="Only pushes of this type.")] = None,
    node: OfNode = None,
    push_state: Annotated[
        PushStateName | None, QueryParameter(name="state", description="Only pushes in this state.")
    ] = None,
    limit: Limit = 100,
) -> PushList:
    """List pushes to nodes, newest first."""
    return await pushes.page(kind, node, push_state, limit)


routers = (
    Router("/managers", route_handlers=[list_managers], tags=["managers"]),
    Router("/pushes", route_handlers=[list_pushes], tags=["pushes"]),
)
