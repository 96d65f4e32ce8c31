"""One session per known node: its link, its sync task and its event subscriber.

The node at this machine's own control URL has a session from the start. A node that joined gets a session when it
becomes known and another when it moves, and loses it when it is forgotten.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog
import zmq
import zmq.asyncio

from app.ingest.fleet import Address, Fleet
from app.ingest.subscriber import Subscriber
from app.push.keys import ManagerKeyPair
from app.push.link import NodeLink
from app.push.node_journal import NodeJournal
from app.push.node_requests import NodeRequests
from app.push.node_sync import NodeSync

CATCH_UP_S = 2.0
"""Seconds between reads of the database: another manager may have admitted or forgotten a node."""
LOOK_S = 1.0

Keep = Callable[[str, Callable[[], Coroutine[Any, Any, None]]], asyncio.Task[None]]
"""Runs a coroutine function forever, and restarts it after failures."""


class NodeSessions:
    """Opens and closes sessions as the fleet changes."""

    def __init__(
        self,
        fleet: Fleet,
        journal: NodeJournal,
        node_requests: NodeRequests,
        context: zmq.asyncio.Context,
        keys: Callable[[], ManagerKeyPair],
        make_sync: Callable[[NodeLink], NodeSync],
        make_subscriber: Callable[..., Subscriber],
        keep: Keep,
        own_url: str,
        manager: str,
    ) -> None:
        self._fleet = fleet
        self._journal = journal
        self._node_requests = node_requests
        self._context = context
        self._keys = keys
        self._make_sync = make_sync
        self._make_subscriber = make_subscriber
        self._keep = keep
        self._own_address: Address = (own_url, "")
        self._manager = manager
        self._node_sessions: dict[Address, tuple[NodeLink, list[asyncio.Task[None]]]] = {}
        self._log = structlog.get_logger()

    async def run(self) -> None:
        """Run forever. Raise StoreUnavailable."""
        caught_up = time.monotonic()
        while True:
            signal_count = self._fleet.change_signal.count
            await self.reconcile()
            if time.monotonic() - caught_up >= CATCH_UP_S:
                caught_up = time.monotonic()
                await self._journal.catch_up(self._fleet, caught_up)
                continue
            await self._fleet.change_signal.wait(CATCH_UP_S, since=signal_count)

    async def reconcile(self) -> None:
        """Open a session for each node that is known now, and close all others."""
        addresses = {self._own_address, *(node.address for node in self._fleet.nodes.values() if node.public_key)}
        for address in [address for address in self._node_sessions if address not in addresses]:
            await self._dismiss(address)
        for address in addresses - self._node_sessions.keys():
            self._engage(address)

    def _engage(self, address: Address) -> None:
        url, key = address
        try:
            link = NodeLink(url, self._manager, self._context, key, self._keys() if key else None)
        except zmq.ZMQError as error:
            self._log.error("node.link_failed", url=url, reason=str(error))
            return
        sync = self._make_sync(link)
        self._node_requests.opened(link)
        self._node_sessions[address] = (
            link,
            [self._keep(f"push {url}", sync.run), self._keep(f"events {url}", partial(self._listen, address, sync))],
        )

    async def _dismiss(self, address: Address) -> None:
        """Close a session. It is forgotten last: cancelled half way, the rest is done by `close`."""
        link, tasks = self._node_sessions[address]
        self._node_requests.closed(link)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await link.close()
        del self._node_sessions[address]

    async def close(self) -> None:
        for address in list(self._node_sessions):
            await self._dismiss(address)

    async def _listen(self, address: Address, sync: NodeSync) -> None:
        """Follow the events of the node at an address, also when its name or events URL changes."""
        while True:
            node = self._fleet.at(address)
            if node is None or not node.events_url:
                await self._fleet.change_signal.wait(LOOK_S)
                continue
            name, url = node.name, node.events_url
            secure = partial(self._secure, address[1]) if address[1] else None
            subscriber = self._make_subscriber(name, sync.resync, secure)
            task = asyncio.create_task(subscriber.run(url, self._context))
            try:
                while not task.done() and self._is_at(address, name, url):
                    await self._fleet.change_signal.wait(LOOK_S)
                if task.done():
                    task.result()
            finally:
                task.cancel()
                await asyncio.wait({task})

    def _secure(self, server_key: str, socket: zmq.Socket[Any]) -> None:
        self._keys().secure(socket, server_key)

    def _is_at(self, address: Address, name: str, events_url: str) -> bool:
        node = self._fleet.at(address)
        return node is not None and (node.name, node.events_url) == (name, events_url)
