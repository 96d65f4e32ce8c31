"""Keys and admission: CURVE on ZeroMQ sockets that other machines can reach, with a ZAP handler in the loop.

A guarded socket accepts only peers that prove one of the admitted keys; libzmq enforces this before any message from
them can be read. If the handler is gone, its requests stay unanswered and the sockets accept no peer.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import structlog
import zmq
from zmq.utils import z85

from dataplane.base.durable_files import replace_file

HANDSHAKE_MS = 5000
HEARTBEAT_MS = 1000
HEARTBEAT_TIMEOUT_MS = 4000
"""A peer behind a broken link is dropped, so that it reconnects once the link is back."""
MAX_DELAYED = 64
"""Limit of peers that wait while the set of admitted keys is undecided."""
ZAP_URL = "inproc://zeromq.zap.01"
LOG_INTERVAL_S = 10.0
_VERSION = b"1.0"

log = structlog.stdlib.get_logger()


class BadKeyFile(Exception):
    """A key file that cannot be used; the message names the file but never its contents."""


@dataclass(frozen=True, slots=True)
class NodeKeyPair:
    """A key pair; both keys are in Z85."""

    public: str
    secret: bytes = field(repr=False)


def key_pair(path: Path) -> NodeKeyPair:
    """Return the key pair whose secret key is kept in this file, which is created if missing. Raises BadKeyFile,
    OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return _make(path)
    with os.fdopen(fd, "rb") as file:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & 0o077:
            raise BadKeyFile(
                f"{path}: expected mode 0600, got {mode:04o}: other users can read the secret key; "
                "remove the file, so that a new one is created, and join again"
            )
        secret = file.read(256).strip()
    try:
        return NodeKeyPair(zmq.curve_public(secret).decode(), secret)
    except (ValueError, zmq.ZMQError):
        raise BadKeyFile(
            f"{path}: expected a CURVE secret key of 40 characters; remove the file, so that a new one is created, "
            "and join again"
        ) from None


def _make(path: Path) -> NodeKeyPair:
    public, secret = zmq.curve_keypair()
    replace_file(path, secret + b"\n")
    return NodeKeyPair(public.decode(), secret)


class Gate:
    """ZAP handler: decides for libzmq whether a key may connect. Serve `socket` in the loop."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], pair: NodeKeyPair) -> None:
        self.refused = 0
        self._pair = pair
        self._admitted: frozenset[str] = frozenset()
        self._undecided = False
        self._delayed: deque[list[bytes]] = deque(maxlen=MAX_DELAYED)
        self._logged_at = -LOG_INTERVAL_S
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(ZAP_URL)

    def admit(self, keys: Iterable[str], *, undecided: bool = False) -> None:
        """Admit exactly these public keys (Z85) from now on. While `undecided`, more keys may follow soon, so requests
        with other keys are held: libzmq's client never reconnects after a refusal."""
        self._admitted, self._undecided = frozenset(keys), undecided
        for _ in range(len(self._delayed)):
            self._answer(self._delayed.popleft())

    def guard(self, socket: zmq.Socket[bytes], domain: str) -> None:
        """Restrict a socket that is not bound yet to admitted keys."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._pair.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)

    def admits(self, frame: zmq.Frame) -> bool:
        """Return whether the sender of a frame is still admitted, because a connection outlives a change of keys."""
        try:
            return frame.get("User-Id") in self._admitted
        except zmq.ZMQError:
            return False

    def on_readable(self) -> bool:
        """Answer one request. Return True if there may be more."""
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._answer(frames)
        return True

    def _answer(self, frames: list[bytes]) -> None:
        peer, empty, version, request, _domain, address, _identity, mechanism, *credentials = frames
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and len(credentials) == 1 else ""
        if version == _VERSION and key in self._admitted:
            status, text = b"200", b"OK"
        elif self._undecided:
            self._delayed.append(frames)  # a full queue drops the oldest request, whose peer times out
            return
        else:
            status, text, key = b"400", b"not admitted", ""
            self._count(address.decode(errors="replace"))
        self.socket.send_multipart([peer, empty, _VERSION, request, status, text, key.encode(), b""])

    def _count(self, address: str) -> None:
        self.refused += 1
        now = time.monotonic()
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            log.warning("peer.refused", address=address, refused=self.refused, reason="its key is not admitted")

    def close(self) -> None:
        self.socket.close()
