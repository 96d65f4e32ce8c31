"""What of a request is libzmq itself: an echo that does nothing, asked by the same client.

A server on libzmq hands each message from its I/O thread to the thread that answers and back. Nothing that is written
on top of it is faster than this; Larder's gateway, which speaks ZMTP itself, may be.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from benchmarks.peers.servers import free_port
from benchmarks.peers.wire import Wire

_ECHO = """
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
HOW = ("blocking", "polled")
"""A thread that waits in `recv`, as no server can that does anything else, and one that waits for several things."""


@contextmanager
def echo(how: str) -> Iterator[Wire]:
    """A connection to an echo in a process of its own."""
    url = f"tcp://127.0.0.1:{free_port()}"
    process = subprocess.Popen([sys.executable, "-c", _ECHO, url, how])
    try:
        with closing(Wire(url)) as wire:
            yield wire
    finally:
        process.kill()
        process.wait()
