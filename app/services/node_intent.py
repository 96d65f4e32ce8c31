"""What operators want of a node besides its records: draining, labels, and to forget it.

Draining and labels are kept in the database; the push worker brings a node to what is kept there, so they hold for a
node that is away, too.
"""

from app.errors import Conflict
from app.ingest.fleet import Fleet, Node
from app.observe.facts import FactHub
from app.services import checks
from app.services.callers import Caller
from app.services.changes import Changes
from app.store import nodes
from app.store.nodes import NodeRow


class NodeIntent:
    def __init__(self, changes: Changes, fleet: Fleet, hub: FactHub) -> None:
        self._changes = changes
        self._fleet = fleet
        self._hub = hub

    async def drain(self, name: str, on: bool, by: Caller, wait_s: float = 0.0) -> None:
        """Let the node take nothing new in, or take it again. Raises NotFound."""
        node = self._known(name)
        async with self._changes.begin(by) as change:
            row = await change.session.get(NodeRow, name)
            if row is None:
                raise checks.missing("node", name)
            if row.draining != on:
                change.noted(
                    "drain" if on else "undrain", "node", name, {"draining": not on}, {"draining": on}
                )
            row.draining = on
        node.draining = on
        self._fleet.pulse.beat()
        self._hub.touch()
        if wait_s:
            told = lambda: node.live_stats is None or node.live_stats.draining == on  # noqa: E731
            await self._fleet.pulse.until(told, wait_s)

    async def label(self, name: str, patch: dict[str, str | None], by: Caller) -> None:
        """Lay labels over those that the node tells; None takes one back. Raises NotFound, Invalid."""
        node = self._known(name)
        async with self._changes.begin(by) as change:
            row = await change.session.get(NodeRow, name)
            if row is None:
                raise checks.missing("node", name)
            before = dict(row.labels or {})
            after = {key: value for key, value in {**before, **patch}.items() if value is not None}
            faults = checks.Faults()
            faults.check("labels", lambda: checks.labels(after))
            faults.check("labels", lambda: checks.labels({**node.told_labels, **after}))
            faults.stop()
            if before != after:
                row.labels = dict(sorted(after.items())) or None
                change.noted("label", "node", name, {"labels": before}, {"labels": after})
        node.own_labels = after
        self._fleet.pulse.beat()
        self._hub.touch()

    async def forget(self, name: str, by: Caller, *, force: bool = False) -> None:
        """Know the node no more: it is told nothing, and must join again. Raises NotFound, Conflict."""
        node = self._known(name)
        connected = node.welcomed and not node.lost
        if connected and not node.public_key:
            raise Conflict(
                f"{name} is the data plane of this management plane and is connected: stop it, or it would be back at "
                "once"
            )
        if connected and not (node.draining or force):
            raise Conflict(
                f"{name} is connected and engines may use it: drain it first, or forget it with force=true"
            )
        async with self._changes.begin(by) as change:
            row = await change.session.get(NodeRow, name)
            if row is not None:
                change.noted("forget", "node", name, _audited(row), None)
                await nodes.forget(change.session, row)
        self._fleet.nodes.pop(name, None)
        self._fleet.pulse.beat()
        self._hub.touch()

    def _known(self, name: str) -> Node:
        """Raises NotFound."""
        node = self._fleet.nodes.get(name)
        if node is None:
            raise checks.missing("node", name)
        return node


def _audited(row: NodeRow) -> dict[str, object]:
    return {
        "control_url": row.control_url,
        "public_key": row.public_key,
        "joined_by": row.joined_by,
        "labels": {**(row.told_labels or {}), **(row.labels or {})},
        "draining": row.draining,
    }
