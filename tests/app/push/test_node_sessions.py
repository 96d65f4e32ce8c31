"""Sessions come and go with their nodes, also while a node talks all the time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq
import zmq.asyncio

from app.ingest.fleet import Fleet
from app.ingest.subscriber import EventIntake, Subscriber
from app.push.keys import ManagerKeyPair
from app.push.link import MAX_UNREAD, NodeLink, new_nonce
from app.push.node_journal import NodeJournal
from app.push.node_requests import NodeRequests
from app.push.node_sessions import NodeSessions
from app.push.node_sync import NodeSync
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.control.messages import ControlRequest
from dataplane.protocol.control.nodes import Drain, NodeDrained
from dataplane.protocol.control.snapshots import Ack, NeedBodies, Snapshot
from tests.app.event_bus import event_bus
from tests.threads import join

pytestmark = pytest.mark.anyio
ROUNDS = 50
TURNS = 8
BUSY_S = 0.005
"""So long the event loop is kept from looking, while messages come."""
ENDS_S = 60.0
_decoder = decoder(ControlRequest)


class TalkativeNode:
    """Publishes without a pause and answers at once, in a thread of its own."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._events = self._context.socket(zmq.PUB)
        self._control = self._context.socket(zmq.ROUTER)
        for each in (self._events, self._control):
            each.linger = 0
            each.bind("tcp://127.0.0.1:*")
        self.events_url = self._events.getsockopt_string(zmq.LAST_ENDPOINT)
        self.control_url = self._control.getsockopt_string(zmq.LAST_ENDPOINT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._events.send_multipart([b"noise", b"", b""])
            if self._control.poll(1):
                peer, question = self._control.recv_multipart()
                request = decode(_decoder, question)
                self._control.send_multipart([peer, encode(NodeDrained(request.nonce, True))])

    def close(self) -> None:
        self._stop.set()
        join(self._thread)
        self._events.close()
        self._control.close()
        self._context.term()


@contextmanager
def talking() -> Iterator[TalkativeNode]:
    node = TalkativeNode()
    try:
        yield node
    finally:
        node.close()


async def ended(task: asyncio.Task[Any], turns: int) -> None:
    """Cancel it when something came for it so many turns of the loop ago; it must end."""
    time.sleep(BUSY_S)  # noqa: ASYNC251 - the loop must not look meanwhile
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=ENDS_S)
    assert done, "a task that was cancelled goes on"


async def test_listening_ends_when_it_is_cancelled_while_events_come() -> None:
    intake = EventIntake(Fleet(), event_bus(), lambda node, stats: None)

    async def resync() -> None:
        raise AssertionError("nothing that could be read was sent")

    context = zmq.asyncio.Context()
    with talking() as node:
        for turn in range(ROUNDS):
            before = intake.malformed
            follower = Subscriber("a", intake, resync, secure=lambda socket: None)
            task = asyncio.create_task(follower.run(node.events_url, context))
            while intake.malformed == before:
                await asyncio.sleep(0.001)
            await ended(task, turn % TURNS)
    context.term()


async def test_a_question_ends_when_it_is_cancelled_while_its_answer_comes() -> None:
    context = zmq.asyncio.Context()
    with talking() as node:
        link = NodeLink(node.control_url, "test", context)

        async def ask_for_ever() -> None:
            while True:
                await link.ask(Drain(new_nonce(), True), ENDS_S)

        while not int(link._socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
            await asyncio.sleep(0.001)
        for turn in range(ROUNDS):
            await ended(asyncio.create_task(ask_for_ever()), turn % TURNS)
        await link.close()
    context.term()


async def test_a_stop_while_a_session_is_closed_closes_its_socket() -> None:
    """An open socket blocks the end of the context, and with it the stop of the process, for ever."""
    closing, may_end = asyncio.Event(), asyncio.Event()

    class SlowSync:
        async def run(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                closing.set()
                await may_end.wait()

    def keep(name: str, work: Any) -> asyncio.Task[None]:
        return asyncio.create_task(work(), name=name)

    public, secret = zmq.curve_keypair()
    fleet, context = Fleet(), zmq.asyncio.Context()
    links: list[NodeLink] = []

    def make_sync(link: NodeLink) -> NodeSync:
        links.append(link)
        return cast(NodeSync, SlowSync())

    sessions = NodeSessions(
        fleet,
        cast(NodeJournal, None),
        NodeRequests(fleet, ENDS_S),
        context,
        lambda: ManagerKeyPair(public.decode(), secret),
        make_sync,
        cast(Any, None),
        keep,
        "tcp://127.0.0.1:9",
        "test",
    )
    address = ("tcp://127.0.0.1:10", public.decode())
    fleet.nodes["a"] = cast(Any, SimpleNamespace(address=address, public_key=address[1], events_url=""))
    await sessions.reconcile()
    await asyncio.sleep(0)
    del fleet.nodes["a"]
    task = asyncio.create_task(sessions.reconcile())
    await asyncio.wait_for(closing.wait(), ENDS_S)
    await ended(task, turns=0)
    may_end.set()
    await sessions.close()
    assert len(links) == 2
    assert [link._socket.closed for link in links] == [True, True]
    context.term()


async def test_replies_that_are_not_read_are_dropped_and_counted(socket_dir: Path) -> None:
    """A node that answers one message many times does not fill the memory of the manager."""
    context, url = zmq.asyncio.Context(), f"ipc://{socket_dir}/many.sock"
    node = context.socket(zmq.ROUTER)
    node.bind(url)
    link = NodeLink(url, "test", context)
    snapshot = Snapshot("pins", "store", 1, "nonce", "", b"")
    replies = [NeedBodies("nonce", ["d"]), *[Ack("pins", 1, "nonce", "", 0.0)] * (3 * MAX_UNREAD), b"\x91" * 100_000]

    async def flood() -> None:
        peer, _ = await node.recv_multipart()
        for reply in replies:
            await node.send_multipart([peer, reply if isinstance(reply, bytes) else encode(reply)])

    async def fetch(digests: list[str]) -> dict[str, bytes]:
        while link.malformed < 2 * MAX_UNREAD + 1:
            await asyncio.sleep(0.001)
        return {}

    flooding = asyncio.create_task(flood())
    while not int(link._socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
        await asyncio.sleep(0.001)
    verdict = await link.push(snapshot, fetch, lambda count: None, ENDS_S)
    assert isinstance(verdict, Ack)
    await flooding
    await link.close()
    node.close(0)
    context.term()
