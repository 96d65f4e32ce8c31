"""/api/v1/nodes"""

from litestar import Router, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from app.http.problems import declared
from app.schemas.nodes import NodeAnswer, NodeList
from app.services.nodes import Nodes


@get("/", operation_id="listNodes", summary="All nodes, by name", responses=declared())
async def list_nodes(nodes: NamedDependency[Nodes]) -> NodeList:
    return nodes.page()


@get("/{name:str}", operation_id="getNode", summary="One node", responses=declared("not-found"))
async def get_node(nodes: NamedDependency[Nodes], name: FromPath[str]) -> NodeAnswer:
    return nodes.get(name)


router = Router("/nodes", route_handlers=[list_nodes, get_node], tags=["nodes"])
