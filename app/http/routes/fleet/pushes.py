"""/api/v1/pushes"""

from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from app.http.operation import operation
from app.http.parameters import Limit, OfNode
from app.schemas.fleet.pushes import PushList, PushStateName, TypeName
from app.services.fleet.pushes import Pushes


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


router = Router("/pushes", route_handlers=[list_pushes], tags=["pushes"])
