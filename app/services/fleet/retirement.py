"""Forgets nodes that are lost for longer than a set time, so that their names are free again."""

import time
from collections.abc import Callable
from contextlib import suppress

from app.errors import Conflict, NotFound
from app.ingest.fleet import Fleet
from app.services.base.principals import PLANE
from app.services.fleet.node_actions import NodeActions


class Retirement:
    """Forgets lost nodes for `app.retire_nodes_after_s`, as `larder nodes delete` does."""

    def __init__(
        self,
        fleet: Fleet,
        actions: NodeActions,
        leads: Callable[[], bool],
        after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`leads`: whether this manager is the leader; only the leader retires nodes. `after_s`: seconds for which a
        node must be lost."""
        self._fleet = fleet
        self._actions = actions
        self._leads = leads
        self._after_s = after_s
        self._clock = clock

    async def look(self) -> None:
        """Forget nodes that joined and have been lost for long enough, counted from the start of this process. None is
        forgotten while all of them are lost: this manager may be the one that is cut off. Raises StoreUnavailable."""
        if not any(node.public_key for node in self._fleet.living()):
            return
        for node in list(self._fleet.nodes.values()):
            lost_s = self._clock() - node.seen
            if node.lost and node.public_key and lost_s >= self._after_s and self._leads():
                with suppress(NotFound, Conflict):  # an operator was faster, or the node is back
                    await self._actions.forget(node.name, PLANE, lost_s=lost_s)
