"""What operators do with a node besides its records: drain, label, resize and forget it, and expel its engines.

Draining, labels and the size of the pool are stored in the database, and the sync task applies the stored state to
nodes. So they also hold for a node that is disconnected, or comes back with a smaller pool.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from app.errors import Conflict, Invalid, NodeRefused, NotFound
from app.ingest.fleet import Fleet
from app.observe.catalogue.fleet import (
    EngineExpelRequested,
    EngineReadmitRequested,
    NodeDrainRequested,
    NodeForgotten,
    NodeRelabeled,
    NodeResizeCancelled,
    NodeResizeRequested,
    NodeUndrainRequested,
)
from app.observe.events import EventBus
from app.push.node_requests import NodeRequests
from app.schemas.fleet.nodes import ExpelAnswer, ExpelPost, ResizeAnswer, ResizePost
from app.services.base import checks
from app.services.base.changes import Change, Changes
from app.services.base.fields import answer
from app.services.base.principals import PLANE, Principal
from app.services.fleet.targets import known_node
from app.store.fleet import nodes
from app.store.fleet.nodes import NodeRow
from dataplane.protocol.control.nodes import Expel, Expelled, Resize, Resized


class NodeActions:
    def __init__(self, node_requests: NodeRequests, changes: Changes, fleet: Fleet, bus: EventBus) -> None:
        self._node_requests = node_requests
        self._changes = changes
        self._fleet = fleet
        self._bus = bus

    async def drain(self, name: str, on: bool, by: Principal, wait_s: float = 0.0) -> None:
        """Stop the node from accepting new blocks, or let it accept them again. Raises NotFound."""
        node = known_node(self._fleet, name)
        async with self._changing(name, by) as (change, row):
            if row.draining != on:
                verb, event = ("drain", NodeDrainRequested()) if on else ("undrain", NodeUndrainRequested())
                change.noted(verb, "node", name, {"draining": not on}, {"draining": on}, event=event, node=name)
            row.draining = on
        node.draining = on
        self._notify()
        if wait_s:
            await self._fleet.change_signal.until(
                lambda: node.live_stats is None or node.live_stats.draining == on, wait_s
            )

    async def label(self, name: str, patch: dict[str, str | None], by: Principal) -> None:
        """Merge labels over those that the node reports; None removes one. Raises NotFound, Invalid."""
        node = known_node(self._fleet, name)
        async with self._changing(name, by) as (change, row):
            before = dict(row.labels or {})
            after = {key: value for key, value in {**before, **patch}.items() if value is not None}
            faults = checks.Faults()
            faults.check("labels", lambda: checks.labels(after))
            faults.check("labels", lambda: checks.labels({**node.reported_labels, **after}))
            faults.stop()
            if before != after:
                row.labels = dict(sorted(after.items())) or None
                event = NodeRelabeled(after)
                change.noted("label", "node", name, {"labels": before}, {"labels": after}, event=event, node=name)
        node.own_labels = after
        self._notify()

    async def resize(self, name: str, request: ResizePost, by: Principal) -> ResizeAnswer:
        """Enlarge the pool, now and whenever the node comes back with a smaller one. Raises NotFound, Invalid,
        NodeUnreachable, NodeRefused."""
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
        async with self._changes.begin(by) as change:
            await nodes.want_capacity(change.session, name, size)
        stats = node.live_stats
        return ResizeAnswer(name, reply.capacity_bytes, None if stats is None else stats.pool.max_blocks)

    async def forget_size(self, name: str, by: Principal) -> None:
        """Delete the stored size, so that it is not requested again when the node comes back. The pool keeps its size.
        Raises NotFound."""
        known_node(self._fleet, name)
        async with self._changes.begin(by) as change:
            if await nodes.desired_capacity(change.session, name) is None:
                raise checks.missing("requested pool size of node", name)
            await nodes.want_capacity(change.session, name, None)
            change.noted("resize", "node", name, None, {"pool_bytes": None}, event=NodeResizeCancelled(), node=name)

    async def expel(self, name: str, client: int, request: ExpelPost, by: Principal) -> ExpelAnswer:
        """Ask a node to expel the process of one of its engines, or to let it attach again. Raises NotFound, Invalid,
        NodeUnreachable, NodeRefused."""
        if not request.on and (request.force or request.kill):
            raise Invalid.at("on", "expected true with force or kill")
        node = known_node(self._fleet, name)
        self._node_requests.check(node)
        after = {"client": client, "force": request.force, "kill": request.kill}
        if request.on:
            expulsion = EngineExpelRequested(client, request.force, request.kill)
            await self._changes.note("expel", "node", name, after, by, expulsion, name)
        else:
            await self._changes.note("readmit", "node", name, after, by, EngineReadmitRequested(client), name)
        message = Expel("", client, request.on, request.force, request.kill)
        return answer(ExpelAnswer, await self._node_requests.ask(node, message, Expelled), node=name)

    async def forget(self, name: str, by: Principal, *, force: bool = False, lost_s: float | None = None) -> None:
        """Forget the node: it receives nothing more, and must join again. `lost_s`: seconds for which it was lost, if
        that is why. Raises NotFound, Conflict."""
        node = known_node(self._fleet, name)
        connected = node.welcomed and not node.lost
        if connected and not node.public_key:
            raise Conflict(
                f"{name} is the data plane of this management plane and is connected: stop it, or it would be back at "
                "once"
            )
        if connected and not (node.draining or force):
            raise Conflict(f"{name} is connected and engines may use it: drain it first, or forget it with force=true")
        async with self._changes.begin(by) as change:
            row = await change.session.get(NodeRow, name)
            if row is not None:
                change.noted("forget", "node", name, _audited(row), None, event=NodeForgotten(lost_s), node=name)
                await nodes.forget(change.session, row)
        self._fleet.nodes.pop(name, None)
        self._notify()

    async def retire(self, lost_s: float, now: float, leads: Callable[[], bool]) -> None:
        """Forget the nodes that joined and have been lost for `lost_s` seconds, counted from the start of this process,
        at monotonic time `now`, while this manager `leads`. None is forgotten while all of them are lost: this manager
        may be the one that is cut off. Raises StoreUnavailable."""
        if not any(node.public_key for node in self._fleet.living()):
            return
        for node in list(self._fleet.nodes.values()):
            if node.lost and node.public_key and now - node.seen >= lost_s and leads():
                with suppress(NotFound, Conflict):  # an operator was faster, or the node is back
                    await self.forget(node.name, PLANE, lost_s=now - node.seen)

    @asynccontextmanager
    async def _changing(self, name: str, by: Principal) -> AsyncIterator[tuple[Change, NodeRow]]:
        """Open a change of the stored state of a node. Raises NotFound."""
        async with self._changes.begin(by) as change:
            row = await change.session.get(NodeRow, name)
            if row is None:
                raise checks.missing("node", name)
            yield change, row

    def _notify(self) -> None:
        self._fleet.change_signal.notify()
        self._bus.touch()


def _pool(value: int | str) -> int:
    size = checks.size(value)
    if not size:
        raise ValueError("expected a size above 0")
    return size


def _audited(row: NodeRow) -> dict[str, object]:
    return {
        "control_url": row.control_url,
        "public_key": row.public_key,
        "joined_by": row.joined_by,
        "labels": {**(row.reported_labels or {}), **(row.labels or {})},
        "draining": row.draining,
    }
