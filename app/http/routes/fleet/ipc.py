"""/api/v1/ipc"""

from litestar import Router, get
from litestar.di import NamedDependency

from app.http.problems import declared
from app.schemas.fleet.ipc import NodeIpcList
from app.services.fleet.nodes import Nodes


@get(
    "/",
    operation_id="listIpc",
    summary="List message queues and object stores in shared memory, as each node's data plane sees them",
    opt={"role": "viewer"},
    responses=declared(),
)
async def list_ipc(nodes: NamedDependency[Nodes]) -> NodeIpcList:
    return nodes.ipc()


router = Router("/ipc", route_handlers=[list_ipc], tags=["nodes"])
