"""/api/v1/nodes"""

from typing import Annotated

from litestar import Router, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Body, FromPath, JSONBody, PathParameter, QueryParameter
from litestar.response import Stream

from app.http.body import MERGE_PATCH
from app.http.parameters import Wait, wait_seconds
from app.http.principals import caller
from app.http.problems import declared
from app.observe.trace import span
from app.schemas.fleet.nodes import (
    DrainPost,
    ExpelAnswer,
    ExpelPost,
    NodeAnswer,
    NodeList,
    NodePatch,
    ResizeAnswer,
    ResizePost,
)
from app.services.cache.traces import Traces
from app.services.fleet.expelling import EngineExpulsion
from app.services.fleet.node_intent import NodeIntent
from app.services.fleet.nodes import Nodes
from app.services.fleet.resize import PoolResize

TRACE_MEDIA_TYPE = "application/x-ndjson"
_ASKS_NODE = (
    "malformed",
    "invalid",
    "not-found",
    "node-refused",
    "node-unreachable",
    "unsupported-media-type",
    "too-large",
)


@get(
    "/",
    operation_id="listNodes",
    summary="All nodes, by name; callers who are limited to tenants see names, states and sizes",
    opt={"role": "viewer", "scoped": True},
    responses=declared(),
)
async def list_nodes(nodes: NamedDependency[Nodes]) -> NodeList:
    return nodes.page(caller())


@get(
    "/{name:str}",
    operation_id="getNode",
    summary="One node; callers who are limited to tenants see its name, state and size",
    opt={"role": "viewer", "scoped": True},
    responses=declared("not-found"),
)
async def get_node(nodes: NamedDependency[Nodes], name: FromPath[str]) -> NodeAnswer:
    return nodes.get(name, caller())


@post(
    "/{name:str}/resize",
    operation_id="resizeNode",
    summary="Let a node's pool grow, now and whenever it comes back smaller",
    status_code=200,
    opt={"body": ResizePost, "role": "operator"},
    responses=declared(*_ASKS_NODE),
)
async def resize_node(
    resizing: NamedDependency[PoolResize], name: FromPath[str], data: JSONBody[ResizePost]
) -> ResizeAnswer:
    with span("nodes.resize"):
        return await resizing.resize(name, data, caller())


@delete(
    "/{name:str}/resize",
    operation_id="forgetSize",
    summary="Ask a node for no size any more when it comes back; until it stops, its pool stays as it is",
    opt={"role": "operator"},
    responses=declared("not-found"),
)
async def forget_size(resizing: NamedDependency[PoolResize], name: FromPath[str]) -> None:
    with span("nodes.forget_size"):
        await resizing.forget(name, caller())


@get(
    "/{name:str}/trace",
    operation_id="getTrace",
    summary="What engines asked the node for, as JSON lines that `larder replay` reads",
    opt={"role": "operator"},
    media_type=TRACE_MEDIA_TYPE,
    responses={
        200: ResponseSpec(
            str, generate_examples=False, media_type=TRACE_MEDIA_TYPE, description="One request a line."
        ),
        **declared("invalid", "not-found", "node-refused", "node-unreachable"),
    },
)
async def get_trace(
    traces: NamedDependency[Traces],
    name: FromPath[str],
    since_s: Annotated[
        float, QueryParameter(gt=0, le=86_400, description="How far back; nodes keep about an hour.")
    ] = 3600,
) -> Stream:
    return Stream(await traces.lines(name, since_s), media_type=TRACE_MEDIA_TYPE)


@post(
    "/{name:str}/drain",
    operation_id="drainNode",
    summary="Let a node take no new engines and store nothing more, or take them again; reads go on",
    status_code=200,
    opt={"body": DrainPost, "role": "operator"},
    responses=declared("malformed", "invalid", "not-found", "unsupported-media-type", "too-large"),
)
async def drain_node(
    nodes: NamedDependency[Nodes],
    node_intent: NamedDependency[NodeIntent],
    name: FromPath[str],
    data: JSONBody[DrainPost],
    wait: Wait = "",
) -> NodeAnswer:
    with span("nodes.drain"):
        await node_intent.drain(name, data.on, caller(), wait_seconds(wait))
    return nodes.get(name, caller())


@post(
    "/{name:str}/engines/{client:int}/expel",
    operation_id="expelEngine",
    summary="Drop the leases of an engine's process and do not let it attach again, or kill it",
    status_code=200,
    opt={"body": ExpelPost, "role": "operator"},
    responses=declared(*_ASKS_NODE),
)
async def expel_engine(
    expelling: NamedDependency[EngineExpulsion],
    name: FromPath[str],
    client: Annotated[int, PathParameter(ge=1, le=(1 << 62) - 1)],
    data: JSONBody[ExpelPost],
) -> ExpelAnswer:
    with span("nodes.expel"):
        return await expelling.expel(name, client, data, caller())


@patch(
    "/{name:str}",
    operation_id="patchNode",
    summary="Lay labels over those that the node tells (JSON merge patch: null takes one of ours back)",
    opt={"body": NodePatch, "role": "operator"},
    responses=declared("malformed", "invalid", "not-found", "unsupported-media-type", "too-large"),
)
async def patch_node(
    nodes: NamedDependency[Nodes],
    node_intent: NamedDependency[NodeIntent],
    name: FromPath[str],
    data: Annotated[NodePatch, Body(media_type=MERGE_PATCH)],
) -> NodeAnswer:
    with span("nodes.label"):
        await node_intent.label(name, data.labels, caller())
    return nodes.get(name, caller())


@delete(
    "/{name:str}",
    operation_id="forgetNode",
    summary="Know a node no more: it must join again. Refused while it is connected and not drained",
    opt={"role": "admin"},
    responses=declared("not-found", "conflict", "invalid"),
)
async def forget_node(
    node_intent: NamedDependency[NodeIntent],
    name: FromPath[str],
    force: Annotated[bool, QueryParameter(description="Also while it is connected and not drained.")] = False,
) -> None:
    with span("nodes.forget"):
        await node_intent.forget(name, caller(), force=force)


router = Router(
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
)
