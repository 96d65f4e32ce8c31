"""/api/v1/ipc"""

from litestar import Router, get
from litestar.di import NamedDependency

from app.http.operation import operation
from app.schemas.fleet.ipc import NodeIpcList
from app.services.fleet.nodes import Nodes


@operation(get, "/", role="viewer")
async def list_ipc(nodes: NamedDependency[Nodes]) -> NodeIpcList:
    """List message queues and object stores in shared memory, as each node's data plane sees them."""
    return nodes.ipc()


router = Router("/ipc", route_handlers=[list_ipc], tags=["nodes"])
