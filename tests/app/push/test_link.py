"""A link delivers each answer to its own request, and outlives a renewal that fails."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq
import zmq.asyncio
from structlog.testing import capture_logs

from app.ingest.fleet import Fleet
from app.push.desired import DesiredState
from app.push.leader_election import LeaderElection
from app.push.link import NoAnswer, NodeLink, NotUnderstood
from app.push.node_journal import NodeJournal
from app.push.node_sync import RENEW_S, NodeSync
from dataplane.protocol.codec import encode
from dataplane.protocol.control.messages import VERSION, ControlRefused, ControlReply
from dataplane.protocol.control.nodes import Drain, NodeDrained, Welcome
from tests.app.event_bus import event_bus

pytestmark = pytest.mark.anyio
WAIT_S = 60.0
WELCOME = Welcome(VERSION, "a", "e", 1, "0", "/nowhere", "tcp://127.0.0.1:9", 1, {})


class Peer:
    """The control socket of a node that answers each request with the given replies."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("tcp://127.0.0.1:*")
        self.url = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    async def answer(self, *replies: ControlReply) -> None:
        peer, _ = await self._socket.recv_multipart()
        for reply in replies:
            await self._socket.send_multipart([peer, encode(reply)])

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
async def linked() -> AsyncIterator[tuple[NodeLink, Peer]]:
    context = zmq.asyncio.Context()
    peer = Peer(context)
    link = NodeLink(peer.url, "test", context)
    yield link, peer
    await link.close()
    peer.close()
    context.term()


async def answer_of(link: NodeLink, peer: Peer, *replies: ControlReply) -> ControlReply:
    """Ask when there is a connection, and return the answer."""
    async with asyncio.timeout(WAIT_S):
        while not int(link._socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
            await asyncio.sleep(0.001)
        answering = asyncio.create_task(peer.answer(*replies))
        try:
            return await link.ask(Drain("nonce", True), WAIT_S)
        finally:
            await answering


async def test_a_late_welcome_is_not_the_answer_to_another_request(linked: tuple[NodeLink, Peer]) -> None:
    drained = NodeDrained("nonce", True)
    assert await answer_of(*linked, WELCOME, drained) == drained
    with pytest.raises(NotUnderstood, match="cannot be read"):
        await answer_of(*linked, ControlRefused("malformed", "it cannot be read"))


async def test_a_link_goes_on_after_a_renewal_that_failed(
    linked: tuple[NodeLink, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, peer = linked

    def socket(_kind: int) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    drained = NodeDrained("nonce", True)
    with monkeypatch.context() as patch:
        patch.setattr(link, "_context", SimpleNamespace(socket=socket))
        with pytest.raises(zmq.ZMQError):
            await link.renew()
    assert await answer_of(link, peer, drained) == drained
    before = link._socket
    await link.renew()
    assert before.closed
    assert await answer_of(link, peer, drained) == drained


async def test_a_renewal_that_is_cancelled_leaves_no_socket_open(linked: tuple[NodeLink, Peer]) -> None:
    link, _ = linked
    before = link._socket
    renewing = asyncio.create_task(link.renew())
    await asyncio.sleep(0)
    renewing.cancel()
    await asyncio.wait({renewing})
    assert before.closed
    assert not link._socket.closed


async def test_a_question_to_a_link_that_was_closed_has_no_answer(linked: tuple[NodeLink, Peer]) -> None:
    link, _ = linked
    await link.close()
    with pytest.raises(NoAnswer):
        await link.ask(Drain("nonce", True), WAIT_S)


async def test_a_renewal_that_fails_is_logged_and_tried_again() -> None:
    renewals = 0

    async def renew() -> None:
        nonlocal renewals
        renewals += 1
        raise zmq.ZMQError(errno.EMFILE)

    link: Any = SimpleNamespace(url="tcp://a", secured=True, renew=renew)
    desired, journal = cast(DesiredState, None), cast(NodeJournal, None)
    sync = NodeSync(link, Fleet(), desired, journal, event_bus(), WAIT_S, cast(LeaderElection, None))
    with capture_logs() as lines:
        for _ in range(2):
            sync._reported_at -= RENEW_S
            await sync._renew()
    assert renewals == 2
    assert [(line["event"], line["url"]) for line in lines] == [("node.link_failed", "tcp://a")] * 2
