"""Retires nodes: a node that is lost for longer than a set time leaves the fleet, so that its name is free again."""

import asyncio
import time
from collections.abc import Callable

from app.errors import NotFound
from app.ingest.fleet import Fleet
from app.services.base.principals import PLANE
from app.services.fleet.node_intent import NodeIntent

LOOK_S = 5.0


class Retirement:
    def __init__(
        self,
        fleet: Fleet,
        intent: NodeIntent,
        leads: Callable[[], bool],
        after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`leads`: whether this manager is the leader; only the leader retires nodes. `after_s`: seconds for which a
        node must be lost."""
        self._fleet = fleet
        self._intent = intent
        self._leads = leads
        self._after_s = after_s
        self._clock = clock
        self._lost_from: dict[str, float] = {}
        """When this manager first found each node lost. Its last answer in the database may be weeks old."""

    async def run(self) -> None:
        """Run until cancelled. Raises StoreUnavailable; call it again then."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Retire nodes that joined and have been lost for long enough. If all nodes are lost, this manager may be the
        one that is cut off, so none is retired. Raises StoreUnavailable."""
        now = self._clock()
        lost = {node.name for node in self._fleet.nodes.values() if node.lost and node.public_key}
        self._lost_from = {name: self._lost_from.get(name, now) for name in lost}
        if not self._leads() or not self._fleet.living():
            return
        for name, since in list(self._lost_from.items()):
            if now - since >= self._after_s:
                try:
                    await self._intent.forget(name, PLANE, lost_s=now - since)
                except NotFound:
                    continue
