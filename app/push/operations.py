"""What nodes are asked to do or to tell besides holding snapshots: one question, one answer, on the node's only link.

A node that is not connected, does not answer in time, or does not understand is a failure with a sentence; what it
sends raises nothing else.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from app.errors import LarderError, NodeRefused, NodeUnreachable
from app.ingest.fleet import Address, Fleet, Node
from app.push.link import Fetch, Link, NoAnswer, NotUnderstood, Question, new_nonce
from dataplane.protocol.control import Ack, ControlReply, Nack, Snapshot

R = TypeVar("R", bound=ControlReply)


@dataclass(frozen=True)
class Told(Generic[R]):
    """What one node said: an answer, or why there is none."""

    node: str
    answer: R | None
    error: str = ""


class Operations:
    """Asks nodes by name. Links are known while they are open."""

    def __init__(self, fleet: Fleet, timeout_s: float) -> None:
        self._fleet = fleet
        self._timeout_s = timeout_s
        self._links: dict[Address, Link] = {}

    def opened(self, link: Link) -> None:
        self._links[link.address] = link

    def closed(self, link: Link) -> None:
        self._links.pop(link.address, None)

    def connected(self) -> list[Node]:
        """Nodes that can be asked, by name. Raises NodeUnreachable when there is none."""
        nodes = [node for node in self._fleet.connected() if node.address in self._links]
        if not nodes:
            raise NodeUnreachable("no node is connected; try again when one is")
        return nodes

    def check(self, node: Node) -> Link:
        """Raises NodeUnreachable when the node cannot be asked now."""
        link = self._links.get(node.address)
        if link is None or not node.welcomed or node.lost:
            raise NodeUnreachable(f"{node.name} is not connected; try again when it is")
        return link

    async def ask(self, node: Node, message: Callable[[str], Question], kind: type[R]) -> R:
        """The node's answer to `message(nonce)`. Raises NodeUnreachable, NodeRefused."""
        link = self.check(node)
        try:
            reply = await link.ask(message(new_nonce()), self._timeout_s)
        except NoAnswer as error:
            raise NodeUnreachable(f"{node.name}: {error}") from None
        except NotUnderstood as error:
            raise NodeRefused(f"{node.name}: {error}") from None
        if not isinstance(reply, kind):
            raise NodeRefused(f"{node.name} answered with {type(reply).__name__}, expected {kind.__name__}")
        return reply

    async def try_out(self, node: Node, snapshot: Snapshot, fetch: Fetch) -> Ack | Nack:
        """What the node would answer to a snapshot. It applies nothing. Raises NodeUnreachable, NodeRefused."""
        link = self.check(node)
        trial = msgspec.structs.replace(snapshot, dry_run=True, nonce=new_nonce())
        try:
            return await link.push(trial, fetch, lambda count: None, self._timeout_s)
        except NoAnswer as error:
            raise NodeUnreachable(f"{node.name}: {error}") from None
        except NotUnderstood as error:
            raise NodeRefused(f"{node.name}: {error}") from None

    async def ask_all(self, message: Callable[[str], Question], kind: type[R]) -> list[Told[R]]:
        """Every connected node's answer, by name. Raises NodeUnreachable when there is none to ask."""

        async def one(node: Node) -> Told[R]:
            try:
                return Told(node.name, await self.ask(node, message, kind))
            except LarderError as error:
                return Told(node.name, None, error.message)

        return list(await asyncio.gather(*(one(node) for node in self.connected())))
