"""What of a request is libzmq itself: an echo that does nothing, asked by the same client.

A server on libzmq hands each message from its I/O thread to the thread that answers and back. Nothing that is written
on top of it is faster than such an echo. One that reads and writes the connection itself, as Larder's gateway does,
shows what is left then: the client's libzmq and the kernel.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from benchmarks.peers.servers import free_port
from benchmarks.peers.wire import Wire

_ON_LIBZMQ = """
import sys, zmq
socket = zmq.Context().socket(zmq.ROUTER)
socket.bind(sys.argv[1])
if sys.argv[2] == "blocking":
    while True:
        identity, uid, operation, *_ = socket.recv_multipart()
        socket.send_multipart([identity, uid, operation, b"\\xc3"])
import select
epoll = select.epoll()
epoll.register(socket.getsockopt(zmq.FD), select.EPOLLIN)
while True:
    epoll.poll()
    while socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
        identity, uid, operation, *_ = socket.recv_multipart(zmq.NOBLOCK)
        socket.send_multipart([identity, uid, operation, b"\\xc3"])
"""
_BY_HAND = """
import select, socket, sys
from dataplane.gateways.lmcache.zmtp.protocol import ZmtpConnection, message
host, _, port = sys.argv[1].removeprefix("tcp://").rpartition(":")
peer, _ = socket.create_server((host, int(port))).accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
epoll = select.epoll()
epoll.register(peer.fileno(), select.EPOLLIN)
protocol = ZmtpConnection(1 << 20, 16)
while True:
    reply = bytes(protocol.data_to_send)
    protocol.data_to_send.clear()
    while (frames := protocol.next_message()) is not None:
        reply += message([frames[0], frames[1], b"\\xc3"])
    reply += bytes(protocol.data_to_send)
    protocol.data_to_send.clear()
    if reply:
        peer.send(reply)
    epoll.poll()
    data = peer.recv(1 << 16)
    if not data:
        break
    protocol.receive_data(data)
"""
HOW = {"blocking": _ON_LIBZMQ, "polled": _ON_LIBZMQ, "by_hand": _BY_HAND}
"""On libzmq a thread that waits in `recv`, as no server can that does anything else, and one that waits for several
things; and none of libzmq at this end."""


@contextmanager
def echo(how: str) -> Iterator[Wire]:
    """A connection to an echo in a process of its own."""
    url = f"tcp://127.0.0.1:{free_port()}"
    process = subprocess.Popen([sys.executable, "-c", HOW[how], url, how])
    try:
        with closing(Wire(url)) as wire:
            yield wire
    finally:
        process.kill()
        process.wait(30)
