"""A TCP proxy whose connections can be slow, silent or cut."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.threads import join

_BYTES = 65_536
_PIECE_BYTES = 1_024
_PIECE_S = 0.02


class TcpProxy:
    """Passes connections on to a server. What is set applies to the next bytes of open connections, too."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.silent = False
        """Pass nothing on in either direction, as when a network lost its way: the connections stay open."""
        self.slow = False
        """Pass answers on by 1 KiB, about 50 times a second."""
        self.cut_after: int | None = None
        """Close a connection after so many bytes of answers."""
        self.connections = 0
        """Connections that were accepted so far."""
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="proxy")]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        join(*self._threads)
        for each in self._sockets:
            each.close()

    def drop(self) -> None:
        """Cut the connections that are open."""
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            _shut(each)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(self._target, timeout=30)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._sockets += [client, server]
            if self._closed.is_set():
                self.drop()
            for arguments in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._pass, args=arguments, name="proxy")
                self._threads.append(thread)
                thread.start()

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        passed = 0
        try:
            while data := source.recv(_PIECE_BYTES if answers and self.slow else _BYTES):
                if self.silent:
                    continue
                if answers and self.cut_after is not None and passed + len(data) > self.cut_after:
                    target.sendall(data[: max(0, self.cut_after - passed)])
                    break
                if answers and self.slow:
                    self._closed.wait(_PIECE_S)
                target.sendall(data)
                passed += len(data)
        except OSError:
            pass
        _shut(source)
        _shut(target)


@contextmanager
def tcp_proxy(port: int) -> Iterator[TcpProxy]:
    """Run a proxy to a port of this machine."""
    proxy = TcpProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()


class ScriptedServer:
    """A server that answers every connection with the same bytes, after the first bytes that it receives."""

    def __init__(self, answer: bytes, *, stays_open: bool = False, endless: bool = False) -> None:
        self._answer = answer
        self.received = b""
        """What was received so far, by all connections."""
        self._stays_open = stays_open
        self._endless = endless
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept, name="scripted server")]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        """End the server and its connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        join(*self._threads)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._answer_to, args=[client], name="scripted server")
            self._threads.append(thread)
            thread.start()

    def _answer_to(self, client: socket.socket) -> None:
        client.settimeout(0.1)
        with client, contextlib.suppress(OSError):
            while not self._closed.is_set():
                try:
                    data = client.recv(_BYTES)
                except TimeoutError:
                    continue
                if not data:
                    return
                self.received += data
                self._send(client)
                while self._endless and not self._closed.is_set():
                    self._send(client)
                if not self._stays_open:
                    return

    def _send(self, client: socket.socket) -> None:
        """Send the whole answer, however slowly the client reads it."""
        left = memoryview(self._answer)
        while left and not self._closed.is_set():
            with contextlib.suppress(TimeoutError):
                left = left[client.send(left) :]


@contextmanager
def scripted_server(answer: bytes, *, stays_open: bool = False, endless: bool = False) -> Iterator[ScriptedServer]:
    """Run a server that gives one answer."""
    server = ScriptedServer(answer, stays_open=stays_open, endless=endless)
    try:
        yield server
    finally:
        server.close()


def _shut(each: socket.socket) -> None:
    """End a connection; the socket stays open, because another thread may be about to read from its number."""
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
