"""/api/v1/actions"""

from litestar import Router, delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from app.http.body import StrictRequest
from app.http.middleware.disconnect import while_there
from app.http.operation import operation
from app.http.parameters import NodeName, Number, Wait, wait_seconds
from app.http.principals import caller
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

_ASKS_NODE = ("not-found", "invalid", "node-refused", "node-unreachable")


@operation(post, "/lookup", "node-unreachable", role="viewer", scoped=True)
async def lookup(request: StrictRequest, lookups: NamedDependency[Lookups], data: JSONBody[LookupPost]) -> LookupAnswer:
    """Look up how much of a prefix each node would serve now, by tier."""
    with span("actions.lookup"):
        return await while_there(request, lookups.look_up(data, caller()))


@operation(post, "/locate", "node-unreachable", role="viewer", scoped=True)
async def locate(request: StrictRequest, lookups: NamedDependency[Lookups], data: JSONBody[LookupPost]) -> LocateAnswer:
    """Look up the nodes that hold the start of a prefix, best first, and their engine sockets."""
    with span("actions.locate"):
        return await while_there(request, lookups.locate(data, caller()))


@operation(post, "/invalidate", "node-unreachable", role="operator", scoped=True)
async def invalidate(actions: NamedDependency[Actions], data: JSONBody[SweepPost]) -> ActionAnswer:
    """Invalidate blocks: they become unreadable at once, unless a permanent pin holds them."""
    with span("actions.invalidate"):
        return await actions.sweep("invalidate", data, caller())


@operation(post, "/demote", "node-unreachable", role="operator", scoped=True)
async def demote(actions: NamedDependency[Actions], data: JSONBody[SweepPost]) -> ActionAnswer:
    """Demote blocks: they are evicted first until they are used again."""
    with span("actions.demote"):
        return await actions.sweep("demote", data, caller())


@operation(post, "/clear", "node-unreachable", role="operator")
async def clear(actions: NamedDependency[Actions], data: JSONBody[ClearPost]) -> ActionAnswer:
    """Clear the cache; blocks under permanent pins stay unless the request includes them."""
    with span("actions.clear"):
        return await actions.clear(data, caller())


@operation(post, "/verify", "node-unreachable", role="operator", scoped=True)
async def verify(actions: NamedDependency[Actions], data: JSONBody[VerifyPost], wait: Wait = "") -> VerifyAnswer:
    """Verify the checksums of blocks in the background; corrupt blocks become misses."""
    with span("actions.verify"):
        return await actions.verify(data, caller(), wait_seconds(wait))


@operation(get, "/verify/{node:str}/{number:int}", *_ASKS_NODE, role="viewer", scoped=True)
async def get_verification(actions: NamedDependency[Actions], node: NodeName, number: Number) -> NodeVerification:
    """Get the progress of a verification."""
    return await actions.verification(node, number, caller())


@operation(post, "/move", "node-unreachable", role="operator", scoped=True)
async def move_blocks(actions: NamedDependency[Actions], data: JSONBody[MovePost], wait: Wait = "") -> MoveAnswer:
    """Copy blocks to a tier, with or without removing them from memory, or load them into memory."""
    with span("actions.move"):
        return await actions.move(data, caller(), wait_seconds(wait))


@operation(post, "/compress", "node-unreachable", role="operator", scoped=True)
async def compress_blocks(
    actions: NamedDependency[Actions], data: JSONBody[CompressPost], wait: Wait = ""
) -> MoveAnswer:
    """Encode the blocks of a tier again, with the current `compress` of its record."""
    with span("actions.compress"):
        return await actions.move(data, caller(), wait_seconds(wait))


@operation(get, "/move/{node:str}/{number:int}", *_ASKS_NODE, role="viewer", scoped=True)
async def get_move(actions: NamedDependency[Actions], node: NodeName, number: Number) -> NodeMove:
    """Get the progress of a move."""
    return await actions.move_progress(node, number, caller())


@operation(delete, "/move/{node:str}/{number:int}", *_ASKS_NODE, role="operator", scoped=True, status_code=200)
async def cancel_move(actions: NamedDependency[Actions], node: NodeName, number: Number, wait: Wait = "") -> NodeMove:
    """Cancel a move; blocks that have been moved stay moved."""
    with span("actions.cancel_move"):
        return await actions.cancel_move(node, number, caller(), wait_seconds(wait))


@operation(post, "/restart", "conflict", role="operator")
async def restart(restarts: NamedDependency[Restarts], data: JSONBody[RestartPost]) -> RestartAnswer:
    """Restart Larder with its cache; refused if the cache would be lost."""
    with span("actions.restart"):
        return await restarts.restart(data, caller())


@operation(post, "/dry-run", "node-unreachable", role="operator")
async def dry_run(
    request: StrictRequest, dry_runs: NamedDependency[DryRuns], data: JSONBody[DryRunPost]
) -> DryRunAnswer:
    """Validate records on the nodes without applying or storing them."""
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
        move_blocks,
        get_move,
        cancel_move,
        compress_blocks,
        restart,
        dry_run,
    ],
    tags=["actions"],
)
