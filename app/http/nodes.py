"""/api/v1/nodes"""

from litestar import Router, get

from app.http.problems import declared
from app.schemas.nodes import NodeAnswer, NodeList
from app.services.nodes import Nodes


@get("/", operation_id="listNodes", summary="All nodes, by name", responses=declared())
async def list_nodes(nodes: Nodes) -> NodeList:
    return nodes.page()


@get("/{name:str}", operation_id="getNode", summary="One node", responses=declared("not-found"))
async def get_node(nodes: Nodes, name: str) -> NodeAnswer:
    return nodes.get(name)


router = Router("/nodes", route_handlers=[list_nodes, get_node], tags=["nodes"])
