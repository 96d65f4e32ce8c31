"""One process cannot take all connections, nor have everything sent to it again and again."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock

import pytest

from dataplane.core.blocks.leases import LeaseTable
from dataplane.core.node import Node, NodeOptions
from dataplane.ipc.processes import Peer
from dataplane.memory.memory import NodeMemory
from dataplane.protocol import engine as wire
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import Code, ReserveOutcome, code_of
from dataplane.sockets.session import EngineServices, Session
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, RawEngine, engine_process, line

_decoder = decoder(wire.EngineReply)
STORE_ONE = """
with attach(sys.argv[1], [make.space()], timeout_s=30) as client:
    with client.reserve(make.keys(1), 4096) as reservation:
        tell(reservation.commit().blocks)
"""


def test_a_process_that_takes_all_its_connections_leaves_some_to_others(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane().start()
    resource.prlimit(plane.pid, resource.RLIMIT_NOFILE, (400, 400))
    with ExitStack() as crowd:
        last = [crowd.enter_context(RawEngine(plane.socket)) for _ in range(101)][-1]
        refused = last.receive()
        assert isinstance(refused, wire.Refused)
        assert (code_of(refused.code), refused.message) == (
            Code.TOO_MANY_CLIENTS,
            "at most 100 connections of one process are served",
        )
        with engine_process(STORE_ONE, plane.socket) as other:
            assert line(other) == "1"
    with RawEngine(plane.socket) as again:
        again.attach()


# ---- descriptors in flight


class Wire:
    """A session and the other end of its connection; while `crowded`, no descriptor can be sent."""

    def __init__(self, memory: NodeMemory, monkeypatch: pytest.MonkeyPatch) -> None:
        options = NodeOptions("n", "1", make.MIB, make.MIB, 30.0, 0.5, 8)
        private, leases = make.private_memory(1024), LeaseTable(lambda: None)
        self.node = Node(options, memory.index, memory, leases, 0.0, lambda event: None, *private)
        self.crowded = False
        ours, self.peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours = ours
        peer = Peer(os.getpid(), os.getuid(), -1)
        services = EngineServices(self.node, memory, lambda: 1.0, False, Mock(), Mock(), Mock())
        self.session = Session(services, ours, peer, Mock(), Mock(), Mock())
        send_fds = socket.send_fds

        def send(*arguments: Any) -> int:
            if self.crowded:
                raise OSError(errno.ETOOMANYREFS, "Too many references")
            return send_fds(*arguments)

        monkeypatch.setattr(socket, "send_fds", send)

    def ask(self, request: wire.EngineRequest) -> wire.EngineReply:
        self.peer.send(encode(request))
        self.session.on_readable()
        data, fds, _, _ = socket.recv_fds(self.peer, wire.MAX_DATAGRAM_BYTES, 253, socket.MSG_DONTWAIT)
        for fd in fds:
            os.close(fd)
        answer: wire.EngineReply = decode(_decoder, data)
        return answer

    def close(self) -> None:
        self._ours.close()
        self.peer.close()


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    memory = NodeMemory(1024)
    link = Wire(memory, monkeypatch)
    yield link
    link.close()
    memory.close()


ATTACH = wire.Attach(1, wire.VERSION, "g", [wire.SpaceRequest(make.space())])


def test_an_attach_with_unsendable_memory_is_undone(link: Wire) -> None:
    link.crowded = True
    refused = link.ask(ATTACH)
    assert isinstance(refused, wire.Refused)
    assert code_of(refused.code) is Code.OUT_OF_MEMORY
    assert link.node.engines == {}
    link.crowded = False
    assert isinstance(link.ask(ATTACH), wire.Attached)


def test_a_reservation_stands_when_its_segment_cannot_be_sent_and_is_sent_on_request(link: Wire) -> None:
    attached = link.ask(ATTACH)
    assert isinstance(attached, wire.Attached)
    link.crowded = True
    reserved = link.ask(wire.Reserve(2, attached.spaces[0], "", make.key("a"), 4096))
    assert isinstance(reserved, wire.Reserved)
    assert (reserved.outcomes[0], reserved.grants) == (ReserveOutcome.WRITE, [])
    assert reserved.reservation
    refused = link.ask(wire.Map(3, [1]))
    assert isinstance(refused, wire.Refused)
    assert code_of(refused.code) is Code.OUT_OF_MEMORY
    link.crowded = False
    mapped = link.ask(wire.Map(4, [1]))
    assert isinstance(mapped, wire.SegmentsMapped)
    assert [grant.segment for grant in mapped.grants] == [1]
    assert link.node.check() == []
