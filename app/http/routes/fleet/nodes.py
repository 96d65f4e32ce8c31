"""/api/v1/nodes, join-tokens and ipc"""

from typing import Annotated, Any

from litestar import Request, Router, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import Body, JSONBody, QueryParameter
from litestar.response import Stream

from app.http.body import MERGE_PATCH
from app.http.lines import answers_lines, as_lines
from app.http.operation import operation
from app.http.parameters import Client, Ident, NodeName, Wait, wait_seconds
from app.http.principals import caller
from app.observe.trace import span
from app.schemas.fleet.enrolment import JoinTokenList, JoinTokenPost, NewJoinToken
from app.schemas.fleet.nodes import (
    DrainPost,
    ExpelAnswer,
    ExpelPost,
    NodeAnswer,
    NodeIpcList,
    NodeList,
    NodePatch,
    ResizeAnswer,
    ResizePost,
    TracedRequest,
)
from app.services.cache.traces import Traces
from app.services.fleet.enrolment import Enrolment
from app.services.fleet.node_actions import NodeActions
from app.services.fleet.nodes import Nodes

_ASKS_NODE = ("not-found", "node-refused", "node-unreachable")


@operation(get, "/", role="viewer", scoped=True)
async def list_nodes(nodes: NamedDependency[Nodes]) -> NodeList:
    """List nodes; callers that are limited to tenants see only names, states and sizes."""
    return nodes.page(caller())


@operation(get, "/{name:str}", "not-found", role="viewer", scoped=True)
async def get_node(nodes: NamedDependency[Nodes], name: NodeName) -> NodeAnswer:
    """Get a node; callers that are limited to tenants see only its name, state and size."""
    return nodes.get(name, caller())


@operation(post, "/{name:str}/resize", *_ASKS_NODE, role="operator")
async def resize_node(
    node_actions: NamedDependency[NodeActions], name: NodeName, data: JSONBody[ResizePost]
) -> ResizeAnswer:
    """Enlarge a node's pool, now and whenever the node returns with a smaller one."""
    with span("nodes.resize"):
        return await node_actions.resize(name, data, caller())


@operation(delete, "/{name:str}/resize", "not-found", role="operator")
async def forget_size(node_actions: NamedDependency[NodeActions], name: NodeName) -> None:
    """Withdraw the requested size of a node's pool; the pool keeps its size until the node stops."""
    with span("nodes.forget_size"):
        await node_actions.forget_size(name, caller())


@operation(
    get,
    "/{name:str}/trace",
    "invalid",
    "not-found",
    "node-refused",
    "node-unreachable",
    role="operator",
    **answers_lines(TracedRequest, "One request per line."),
)
async def get_trace(
    request: Request[Any, Any, Any],
    traces: NamedDependency[Traces],
    name: NodeName,
    since_s: Annotated[
        float, QueryParameter(gt=0, le=86_400, description="Seconds to look back; nodes keep about an hour.")
    ] = 3600,
) -> Stream:
    """Export the access trace of a node as JSON lines that `larder replay` reads."""
    return as_lines(request, await traces.lines(name, since_s))


@operation(post, "/{name:str}/drain", "not-found", role="operator")
async def drain_node(
    nodes: NamedDependency[Nodes],
    node_actions: NamedDependency[NodeActions],
    name: NodeName,
    data: JSONBody[DrainPost],
    wait: Wait = "",
) -> NodeAnswer:
    """Drain a node, or end the drain: a draining node accepts no engines and stores no blocks, but serves reads."""
    with span("nodes.drain"):
        await node_actions.drain(name, data.on, caller(), wait_seconds(wait))
    return nodes.get(name, caller())


@operation(post, "/{name:str}/engines/{client:int}/expel", *_ASKS_NODE, role="operator")
async def expel_engine(
    node_actions: NamedDependency[NodeActions], name: NodeName, client: Client, data: JSONBody[ExpelPost]
) -> ExpelAnswer:
    """Expel an engine's process: drop its leases and bar it from attaching, or kill it."""
    with span("nodes.expel"):
        return await node_actions.expel(name, client, data, caller())


@operation(patch, "/{name:str}", "not-found", role="operator")
async def patch_node(
    nodes: NamedDependency[Nodes],
    node_actions: NamedDependency[NodeActions],
    name: NodeName,
    data: Annotated[NodePatch, Body(media_type=MERGE_PATCH)],
) -> NodeAnswer:
    """Override labels that the node reports (JSON merge patch: null removes an override)."""
    with span("nodes.label"):
        await node_actions.label(name, data.labels, caller())
    return nodes.get(name, caller())


@operation(delete, "/{name:str}", "not-found", "conflict", "invalid", role="admin")
async def forget_node(
    node_actions: NamedDependency[NodeActions],
    name: NodeName,
    force: Annotated[
        bool, QueryParameter(description="Remove the node even if it is connected and not drained.")
    ] = False,
) -> None:
    """Remove a node, which must then join again; refused while the node is connected and not drained."""
    with span("nodes.forget"):
        await node_actions.forget(name, caller(), force=force)


@operation(get, "/", role="admin")
async def list_join_tokens(enrolment: NamedDependency[Enrolment]) -> JoinTokenList:
    """List join tokens, newest first, without their secrets."""
    return await enrolment.page()


@operation(post, "/", "conflict", role="admin", status_code=201)
async def create_join_token(enrolment: NamedDependency[Enrolment], data: JSONBody[JoinTokenPost]) -> NewJoinToken:
    """Create a token with which data planes join the fleet; it is shown only once."""
    with span("join_tokens.create"):
        return await enrolment.create(data, caller())


@operation(delete, "/{ident:str}", "not-found", role="admin")
async def delete_join_token(enrolment: NamedDependency[Enrolment], ident: Ident) -> None:
    """Revoke a join token; nodes that joined with it stay in the fleet."""
    with span("join_tokens.delete"):
        await enrolment.delete(ident, caller())


@operation(get, "/", role="viewer")
async def list_ipc(nodes: NamedDependency[Nodes]) -> NodeIpcList:
    """List message queues and object stores in shared memory, as each node's data plane sees them."""
    return nodes.ipc()


routers = (
    Router(
        "/nodes",
        route_handlers=[
            list_nodes,
            get_node,
            patch_node,
            forget_node,
            drain_node,
            expel_engine,
            resize_node,
            forget_size,
            get_trace,
        ],
        tags=["nodes"],
    ),
    Router("/join-tokens", route_handlers=[list_join_tokens, create_join_token, delete_join_token], tags=["nodes"]),
    Router("/ipc", route_handlers=[list_ipc], tags=["nodes"]),
)
