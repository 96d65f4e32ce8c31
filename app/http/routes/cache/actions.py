"""/api/v1/actions"""

from typing import Annotated

from litestar import Router, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, PathParameter

from app.http.body import StrictRequest
from app.http.middleware.disconnect import while_there
from app.http.parameters import Wait, wait_seconds
from app.http.principals import caller
from app.http.problems import declared
from app.observe.trace import span
from app.schemas.cache.actions import (
    ActionAnswer,
    ClearPost,
    CompressPost,
    DryRunAnswer,
    DryRunPost,
    LocateAnswer,
    LookupAnswer,
    LookupPost,
    MoveAnswer,
    MovePost,
    NodeMove,
    NodeVerification,
    SweepPost,
    VerifyAnswer,
    VerifyPost,
)
from app.schemas.fleet.restarts import RestartAnswer, RestartPost
from app.services.cache.actions import Actions
from app.services.cache.dry_run import DryRuns
from app.services.cache.lookups import Lookups
from app.services.fleet.restarts import Restarts

_PROBLEMS = declared("malformed", "invalid", "unsupported-media-type", "too-large", "node-unreachable")


@post(
    "/lookup",
    operation_id="lookup",
    summary="Look up how much of a prefix each node would serve now, by tier",
    status_code=200,
    opt={"body": LookupPost, "role": "viewer", "scoped": True},
    responses=_PROBLEMS,
)
async def lookup(request: StrictRequest, lookups: NamedDependency[Lookups], data: JSONBody[LookupPost]) -> LookupAnswer:
    with span("actions.lookup"):
        return await while_there(request, lookups.look_up(data, caller()))


@post(
    "/locate",
    operation_id="locate",
    summary=("Look up the nodes that hold the start of a prefix, best first, and their engine sockets"),
    status_code=200,
    opt={"body": LookupPost, "role": "viewer", "scoped": True},
    responses=_PROBLEMS,
)
async def locate(request: StrictRequest, lookups: NamedDependency[Lookups], data: JSONBody[LookupPost]) -> LocateAnswer:
    with span("actions.locate"):
        return await while_there(request, lookups.locate(data, caller()))


@post(
    "/invalidate",
    operation_id="invalidate",
    summary="Invalidate blocks: they become unreadable at once, unless a permanent pin holds them",
    status_code=200,
    opt={"body": SweepPost, "role": "operator", "scoped": True},
    responses=_PROBLEMS,
)
async def invalidate(actions: NamedDependency[Actions], data: JSONBody[SweepPost]) -> ActionAnswer:
    with span("actions.invalidate"):
        return await actions.sweep("invalidate", data, caller())


@post(
    "/demote",
    operation_id="demote",
    summary="Demote blocks: they are evicted first until they are used again",
    status_code=200,
    opt={"body": SweepPost, "role": "operator", "scoped": True},
    responses=_PROBLEMS,
)
async def demote(actions: NamedDependency[Actions], data: JSONBody[SweepPost]) -> ActionAnswer:
    with span("actions.demote"):
        return await actions.sweep("demote", data, caller())


@post(
    "/clear",
    operation_id="clear",
    summary="Clear the cache; blocks under permanent pins stay unless the request includes them",
    status_code=200,
    opt={"body": ClearPost, "role": "operator"},
    responses=_PROBLEMS,
)
async def clear(actions: NamedDependency[Actions], data: JSONBody[ClearPost]) -> ActionAnswer:
    with span("actions.clear"):
        return await actions.clear(data, caller())


@post(
    "/verify",
    operation_id="verify",
    summary="Verify the checksums of blocks in the background; corrupt blocks become misses",
    status_code=200,
    opt={"body": VerifyPost, "role": "operator", "scoped": True},
    responses=_PROBLEMS,
)
async def verify(actions: NamedDependency[Actions], data: JSONBody[VerifyPost], wait: Wait = "") -> VerifyAnswer:
    with span("actions.verify"):
        return await actions.verify(data, caller(), wait_seconds(wait))


@get(
    "/verify/{node:str}/{number:int}",
    operation_id="getVerification",
    summary="Get the progress of a verification",
    opt={"role": "viewer"},
    responses=declared("not-found", "invalid", "node-refused", "node-unreachable"),
)
async def get_verification(
    actions: NamedDependency[Actions],
    node: FromPath[str],
    number: Annotated[int, PathParameter(ge=0, le=(1 << 62) - 1)],
) -> NodeVerification:
    return await actions.verification(node, number, caller())


@post(
    "/move",
    operation_id="moveBlocks",
    summary="Copy blocks to a tier, with or without removing them from memory, or load them into memory",
    status_code=200,
    opt={"body": MovePost, "role": "operator", "scoped": True},
    responses=_PROBLEMS,
)
async def move(actions: NamedDependency[Actions], data: JSONBody[MovePost], wait: Wait = "") -> MoveAnswer:
    with span("actions.move"):
        return await actions.move(data, caller(), wait_seconds(wait))


@post(
    "/compress",
    operation_id="compressBlocks",
    summary="Encode the blocks of a tier again, with the current `compress` of its record",
    status_code=200,
    opt={"body": CompressPost, "role": "operator", "scoped": True},
    responses=_PROBLEMS,
)
async def compress(actions: NamedDependency[Actions], data: JSONBody[CompressPost], wait: Wait = "") -> MoveAnswer:
    with span("actions.compress"):
        return await actions.compress(data, caller(), wait_seconds(wait))


@get(
    "/move/{node:str}/{number:int}",
    operation_id="getMove",
    summary="Get the progress of a move",
    opt={"role": "viewer", "scoped": True},
    responses=declared("not-found", "invalid", "node-refused", "node-unreachable"),
)
async def get_move(
    actions: NamedDependency[Actions],
    node: FromPath[str],
    number: Annotated[int, PathParameter(ge=0, le=(1 << 62) - 1)],
) -> NodeMove:
    return await actions.move_progress(node, number, caller())


@delete(
    "/move/{node:str}/{number:int}",
    operation_id="cancelMove",
    summary="Cancel a move; blocks that have been moved stay moved",
    status_code=200,
    opt={"role": "operator", "scoped": True},
    responses=declared("not-found", "invalid", "node-refused", "node-unreachable"),
)
async def cancel_move(
    actions: NamedDependency[Actions],
    node: FromPath[str],
    number: Annotated[int, PathParameter(ge=0, le=(1 << 62) - 1)],
    wait: Wait = "",
) -> NodeMove:
    with span("actions.cancel_move"):
        return await actions.cancel_move(node, number, caller(), wait_seconds(wait))


@post(
    "/restart",
    operation_id="restart",
    summary="Restart Larder with its cache; refused if the cache would be lost",
    status_code=200,
    opt={"body": RestartPost, "role": "operator"},
    responses=declared("malformed", "invalid", "unsupported-media-type", "too-large", "conflict"),
)
async def restart(restarts: NamedDependency[Restarts], data: JSONBody[RestartPost]) -> RestartAnswer:
    with span("actions.restart"):
        return await restarts.restart(data, caller())


@post(
    "/dry-run",
    operation_id="dryRun",
    summary="Validate records on the nodes without applying or storing them",
    status_code=200,
    opt={"body": DryRunPost, "role": "operator"},
    responses=_PROBLEMS,
)
async def dry_run(
    request: StrictRequest, dry_runs: NamedDependency[DryRuns], data: JSONBody[DryRunPost]
) -> DryRunAnswer:
    with span("actions.dry_run"):
        return await while_there(request, dry_runs.run(data, caller()))


router = Router(
    "/actions",
    route_handlers=[
        lookup,
        locate,
        invalidate,
        demote,
        clear,
        verify,
        get_verification,
        move,
        get_move,
        cancel_move,
        compress,
        restart,
        dry_run,
    ],
    tags=["actions"],
)
