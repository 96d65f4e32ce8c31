"""Requests to nodes other than snapshots: one request, one answer, on the node's only link.

If a node is not connected, does not answer in time, or does not understand, the request fails with an error message.
Answers raise no other errors.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from app.errors import LarderError, NodeRefused, NodeUnreachable
from app.ingest.fleet import Address, Fleet, FleetNode
from app.push.link import Fetch, NoAnswer, NodeLink, NotUnderstood, Question, new_nonce
from dataplane.base import tracing
from dataplane.protocol.control.messages import ControlReply
from dataplane.protocol.control.snapshots import Ack, Nack, Snapshot

R = TypeVar("R", bound=ControlReply)
T = TypeVar("T")


@dataclass(frozen=True)
class NodeReply(Generic[T]):
    """One node's answer, or the reason why there is none."""

    node: FleetNode
    answer: T | None
    error: str | None = None


class NodeRequests:
    """Sends requests to nodes by name, over the links that are currently open."""

    def __init__(self, fleet: Fleet, timeout_s: float) -> None:
        self._fleet = fleet
        self._timeout_s = timeout_s
        self._links: dict[Address, NodeLink] = {}

    def opened(self, link: NodeLink) -> None:
        self._links[link.address] = link

    def closed(self, link: NodeLink) -> None:
        self._links.pop(link.address, None)

    def connected(self) -> list[FleetNode]:
        """Return the nodes that can be asked, by name. Raise NodeUnreachable when there is none."""
        nodes = [node for node in self._fleet.connected() if node.address in self._links]
        if not nodes:
            raise NodeUnreachable("no node is connected; try again when one is")
        return nodes

    def check(self, node: FleetNode) -> NodeLink:
        """Return the node's link. Raise NodeUnreachable when the node cannot be asked now."""
        link = self._links.get(node.address)
        if link is None or not node.welcomed or node.lost:
            raise NodeUnreachable(f"{node.name} is not connected; try again when it is")
        return link

    async def ask(self, node: FleetNode, message: Question, kind: type[R]) -> R:
        """Return the node's answer to a message, which is sent with a new nonce. Raise NodeUnreachable, NodeRefused."""
        link = self.check(node)
        request = msgspec.structs.replace(message, nonce=new_nonce())
        attributes = {"larder.node": node.name}
        try:
            with tracing.child(f"node.{request.__struct_config__.tag}", kind="client", attributes=attributes):
                reply = await link.ask(request, self._timeout_s)
        except NoAnswer as error:
            raise NodeUnreachable(f"{node.name}: {error}") from None
        except NotUnderstood as error:
            raise NodeRefused(f"{node.name}: {error}") from None
        if not isinstance(reply, kind):
            raise NodeRefused(f"{node.name} answered with {type(reply).__name__}, expected {kind.__name__}")
        return reply

    async def try_out(self, node: FleetNode, snapshot: Snapshot, fetch: Fetch) -> Ack | Nack:
        """Return the node's answer to a dry run of a snapshot. Raise NodeUnreachable, NodeRefused."""
        link = self.check(node)
        trial = msgspec.structs.replace(snapshot, dry_run=True, nonce=new_nonce())
        try:
            return await link.push(trial, fetch, lambda count: None, self._timeout_s)
        except NoAnswer as error:
            raise NodeUnreachable(f"{node.name}: {error}") from None
        except NotUnderstood as error:
            raise NodeRefused(f"{node.name}: {error}") from None

    async def ask_all(self, nodes: Sequence[FleetNode], message: Question, kind: type[R]) -> list[NodeReply[R]]:
        """Return the answers of nodes to a message, in their order; the error of each failed one is returned, not
        raised."""
        return await self.each(nodes, lambda node: self.ask(node, message, kind))

    async def each(
        self, nodes: Sequence[FleetNode], request: Callable[[FleetNode], Awaitable[T]]
    ) -> list[NodeReply[T]]:
        """Ask nodes concurrently, and return their answers, in their order."""

        async def request_one(node: FleetNode) -> NodeReply[T]:
            try:
                return NodeReply(node, await request(node))
            except LarderError as error:
                return NodeReply(node, None, error.message)

        return list(await asyncio.gather(*map(request_one, nodes)))
