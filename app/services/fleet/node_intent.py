"""Operators' intent for a node besides its records: drain, label, forget.

Draining and labels are stored in the database, and the sync task applies the stored state to nodes. So they also hold
for a node that is disconnected.
"""

from app.errors import Conflict
from app.ingest.fleet import Fleet
from app.observe.catalogue.fleet import NodeDrainRequested, NodeForgotten, NodeRelabeled, NodeUndrainRequested
from app.observe.events import EventBus
from app.services.base import checks
from app.services.base.changes import Changes
from app.services.base.principals import Principal
from app.services.fleet.targets import known_node
from app.store.fleet import nodes
from app.store.fleet.nodes import NodeRow


class NodeIntent:
    def __init__(self, changes: Changes, fleet: Fleet, bus: EventBus) -> None:
        self._changes = changes
        self._fleet = fleet
        self._bus = bus

    async def drain(self, name: str, on: bool, by: Principal, wait_s: float = 0.0) -> None:
        """Stop the node from accepting new blocks, or let it accept them again. Raises NotFound."""
        node = known_node(self._fleet, name)
        async with self._changes.begin(by) as change:
            row = await change.session.get(NodeRow, name)
            if row is None:
                raise checks.missing("node", name)
            if row.draining != on:
                change.noted(
                    "drain" if on else "undrain",
                    "node",
                    name,
                    {"draining": not on},
                    {"draining": on},
                    event=NodeDrainRequested() if on else NodeUndrainRequested(),
                    node=name,
                )
            row.draining = on
        node.draining = on
        self._fleet.change_signal.notify()
        self._bus.touch()
        if wait_s:
            applied = lambda: node.live_stats is None or node.live_stats.draining == on  # noqa: E731
            await self._fleet.change_signal.until(applied, wait_s)

    async def label(self, name: str, patch: dict[str, str | None], by: Principal) -> None:
        """Merge labels over those that the node reports; None removes one. Raises NotFound, Invalid."""
        node = known_node(self._fleet, name)
        async with self._changes.begin(by) as change:
            row = await change.session.get(NodeRow, name)
            if row is None:
                raise checks.missing("node", name)
            before = dict(row.labels or {})
            after = {key: value for key, value in {**before, **patch}.items() if value is not None}
            faults = checks.Faults()
            faults.check("labels", lambda: checks.labels(after))
            faults.check("labels", lambda: checks.labels({**node.reported_labels, **after}))
            faults.stop()
            if before != after:
                row.labels = dict(sorted(after.items())) or None
                change.noted(
                    "label", "node", name, {"labels": before}, {"labels": after}, event=NodeRelabeled(after), node=name
                )
        node.own_labels = after
        self._fleet.change_signal.notify()
        self._bus.touch()

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
        self._fleet.change_signal.notify()
        self._bus.touch()


def _audited(row: NodeRow) -> dict[str, object]:
    return {
        "control_url": row.control_url,
        "public_key": row.public_key,
        "joined_by": row.joined_by,
        "labels": {**(row.reported_labels or {}), **(row.labels or {})},
        "draining": row.draining,
    }
