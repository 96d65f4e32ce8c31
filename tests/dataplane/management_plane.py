"""A management plane as a joining node sees it: the join socket, in the test's own hands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator

from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.join import SECRET_BYTES, Join, Joined, JoinRefused, JoinReply, JoinToken, token_text
from tests.dataplane.plane import WAIT_S

_decoder = decoder(Join)


class ManagementPlane:
    """Binds a join socket on a free port; every question waits until the test answers it."""

    def __init__(self, url: str = "tcp://127.0.0.1:*") -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        public, self.secret = zmq.curve_keypair()
        self.public = public.decode()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve(domain="*", location=zmq.auth.CURVE_ALLOW_ANY)
        self._made: list[zmq.Socket[bytes]] = []
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.curve_server = True
        self.socket.curve_secretkey = self.secret
        self.socket.bind(url)
        self.url = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def token(self, *, key: str = "", addresses: list[str] | None = None) -> JoinToken:
        return JoinToken("t1", b"s" * SECRET_BYTES, key or self.public, addresses or [self.url])

    def token_file(self, folder: Path, token: JoinToken | None = None) -> str:
        path = folder / "token"
        path.touch(mode=0o600)
        path.write_text(token_text(token or self.token()) + "\n")
        return str(path)

    def answer(self, reply: Callable[[Join], JoinReply]) -> tuple[Join, str]:
        """Wait for a node's question and answer it: the question, and the key of the node."""
        assert self.socket.poll(int(WAIT_S * 1000)), "a node asks to join"
        peer, frame = self.socket.recv_multipart(copy=False)
        key = frame.get("User-Id")
        assert isinstance(key, str)
        join: Join = decode(_decoder, frame.bytes)
        self.socket.send_multipart([peer.bytes, encode(reply(join))])
        return join, key

    def admit(self, *managers: str) -> tuple[Join, str]:
        """Answer that these keys (default: this one's) may talk to the node."""
        return self.answer(
            lambda join: Joined(join.node, list(managers) or [self.public], join.control_url, join.events_url)
        )

    def refuse(self, code: str) -> tuple[Join, str]:
        return self.answer(lambda join: JoinRefused(code, "that is how it is"))

    def requested(self, timeout_s: float) -> bool:
        return bool(self.socket.poll(int(timeout_s * 1000)))

    def control(self, url: str, server_key: str, keys: tuple[str, bytes] | None = None) -> zmq.Socket[bytes]:
        """A DEALER to a node's control socket, with this management plane's key or another's."""
        return self._connect(zmq.DEALER, url, server_key, keys)

    def events(self, url: str, server_key: str, keys: tuple[str, bytes] | None = None) -> zmq.Socket[bytes]:
        socket = self._connect(zmq.SUB, url, server_key, keys)
        socket.subscribe(b"")
        return socket

    def _connect(self, kind: int, url: str, server_key: str, keys: tuple[str, bytes] | None) -> zmq.Socket[bytes]:
        public, secret = keys or (self.public, self.secret)
        socket = self._socket(kind)
        socket.curve_serverkey = server_key.encode()
        socket.curve_publickey = public.encode()
        socket.curve_secretkey = secret
        socket.connect(url)
        return socket

    def plain(self, kind: int, url: str) -> zmq.Socket[bytes]:
        """A socket that speaks no CURVE."""
        socket = self._socket(kind)
        socket.connect(url)
        return socket

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger = 0
        self._made.append(socket)
        return socket

    def close(self) -> None:
        self._authenticator.stop()
        for socket in (self.socket, *self._made):
            socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
