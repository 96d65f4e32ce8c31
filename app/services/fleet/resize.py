"""Enlarges a node's pool. The requested size is stored, and the sync task requests it again when the node comes back
with a smaller pool, until the size is forgotten."""

from app.errors import NodeRefused
from app.ingest.fleet import Fleet
from app.observe.catalogue.fleet import NodeResizeCancelled, NodeResizeRequested
from app.push.node_requests import NodeRequests
from app.schemas.fleet.nodes import ResizeAnswer, ResizePost
from app.services.base import checks
from app.services.base.changes import Changes
from app.services.base.principals import Principal
from app.services.fleet.targets import known_node
from app.store.base.database import Database
from app.store.fleet import nodes
from dataplane.protocol.control.nodes import Resize, Resized


class PoolResize:
    def __init__(self, database: Database, node_requests: NodeRequests, changes: Changes, fleet: Fleet) -> None:
        self._database = database
        self._node_requests = node_requests
        self._changes = changes
        self._fleet = fleet

    async def resize(self, name: str, request: ResizePost, by: Principal) -> ResizeAnswer:
        """Enlarge the pool. Raises NotFound, Invalid, NodeUnreachable, NodeRefused."""
        node = known_node(self._fleet, name)
        size = checks.valid("pool_bytes", lambda: _pool(request.pool_bytes))
        self._node_requests.check(node)
        await self._changes.note("resize", "node", name, {"pool_bytes": size}, by, NodeResizeRequested(size), name)
        try:
            reply = await self._node_requests.ask(node, Resize("", size), Resized)
        except NodeRefused as refusal:
            await self._changes.denied("resize", "node", name, {"pool_bytes": size}, by, str(refusal))
            raise
        node.capacity_bytes = reply.capacity_bytes
        async with self._database.write() as session:
            await nodes.want_capacity(session, name, size)
        stats = node.live_stats
        return ResizeAnswer(name, reply.capacity_bytes, None if stats is None else stats.pool.max_blocks)

    async def forget(self, name: str, by: Principal) -> None:
        """Delete the stored size, so that it is not requested again when the node comes back. The pool keeps its size.
        Raises NotFound."""
        known_node(self._fleet, name)
        async with self._database.read() as session:
            previous = await nodes.desired_capacity(session, name)
        if previous is None:
            raise checks.missing("requested pool size of node", name)
        await self._changes.note("resize", "node", name, {"pool_bytes": None}, by, NodeResizeCancelled(), name)
        async with self._database.write() as session:
            await nodes.want_capacity(session, name, None)


def _pool(value: int | str) -> int:
    size = checks.size(value)
    if not size:
        raise ValueError("expected a size above 0")
    return size
