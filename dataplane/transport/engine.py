"""The engine socket: AF_UNIX SEQPACKET. Accepts engines and holders, and hears when their processes end."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog

from dataplane.core.driven import Driven
from dataplane.core.node import Node
from dataplane.protocol.codec import encode
from dataplane.protocol.codes import Code
from dataplane.protocol.engine import Refused
from dataplane.protocol.events import EngineRefused
from dataplane.protocol.settings import MAX_SOCKET_PATH_BYTES
from dataplane.tiers.memory import NodeMemory
from dataplane.transport.devices import Devices
from dataplane.transport.driven.copies import Copies
from dataplane.transport.loop import Loop
from dataplane.transport.peers import Peer, has_exited, open_process, peer_of
from dataplane.transport.replicas import ReplicaCopies
from dataplane.transport.session import Session

MAX_CONNECTIONS = 4096
DESCRIPTORS_PER_CONNECTION = 2
"""Its socket and its process's; a process may have the connections that take half of the descriptors."""
ACCEPT_PAUSE_S = 0.2
SUPERVISORS_ID = 1
"""A supervisor asks for nothing: its list comes under this number."""
SPARE_DESCRIPTORS = 64
"""Kept free for segments and areas of those who are connected; new peers are turned away before that."""

log = structlog.stdlib.get_logger()


class Keepable(Protocol):
    """What a holder gets a duplicate of: memory, or a gateway's socket."""

    @property
    def fd(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class SocketInUse(Exception):
    """Another data plane serves this socket."""


class EngineServer:
    """Accepts engines and holders on one path."""

    def __init__(
        self,
        loop: Loop,
        node: Node,
        memory: NodeMemory,
        path: str,
        allowed_uids: frozenset[int],
        membarrier: bool,
        clock: Callable[[], float],
        devices: Devices,
        replicas: ReplicaCopies,
    ) -> None:
        self.node = node
        self.memory = memory
        self.membarrier = membarrier
        self.clock = clock
        self.path = path
        self._loop = loop
        self._allowed = allowed_uids | {os.geteuid(), 0}
        self.sockets: Callable[[], Iterable[tuple[str, int, Keepable]]] = tuple
        """Of a gateway whose clients are to outlive this process."""
        self._sessions: dict[int, Session] = {}
        self._of_process: Counter[int] = Counter()
        """Connections by the pid of their process."""
        self._pidfds: dict[int, int] = {}
        """pidfd of each client that attached, until its process is gone."""
        self._lock_fd = _lock(path)
        self._listener = _listen(path, open_to_all=bool(allowed_uids))
        self.copies = Copies(loop, Driven(node), devices, replicas, clock)
        self.replicas = replicas
        self._loop.register(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:  # the peer went away already
            return
        except OSError as error:
            # Out of descriptors: the listener stays readable, so pause instead of spinning.
            log.warning("engine.accept_failed", error=error.strerror)
            self._pause_accepting()
            return
        connection.setblocking(False)
        try:
            peer = peer_of(connection)
        except OSError as error:
            log.warning("engine.peer_unknown", error=error.strerror)
            connection.close()
            return
        refusal = self._refusal(peer)
        if refusal is not None:
            self._turn_away(connection, peer, *refusal)
            return
        self._begin(connection, peer)

    def _begin(self, connection: socket.socket, peer: Peer) -> Session:
        session = self._sessions[connection.fileno()] = Session(self, connection, peer)
        self._of_process[peer.pid] += 1
        self._loop.register(connection.fileno(), session.on_readable)
        return session

    def _refusal(self, peer: Peer) -> tuple[Code, str] | None:
        """Why a peer is turned away."""
        if peer.uid not in self._allowed:
            return Code.NOT_ALLOWED, f"uid {peer.uid} is not on the allow-list"
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        share = min(MAX_CONNECTIONS, limit // DESCRIPTORS_PER_CONNECTION) // 2
        if self._of_process[peer.pid] >= share:
            return Code.TOO_MANY_CLIENTS, f"at most {share} connections of one process are served"
        if len(self._sessions) >= MAX_CONNECTIONS or not _descriptors_to_spare(limit):
            sentence = f"at most {MAX_CONNECTIONS} connections are served, fewer when descriptors are short"
            return Code.TOO_MANY_CLIENTS, sentence
        return None

    def _pause_accepting(self) -> None:
        listener = self._listener.fileno()
        self._loop.unregister(listener)
        self._loop.once(ACCEPT_PAUSE_S, lambda: self._loop.register(listener, self._accept))

    def _turn_away(self, connection: socket.socket, peer: Peer, code: Code, message: str) -> None:
        self.node.emit(EngineRefused(self.clock(), peer.pid, peer.uid, code.name.lower(), message))
        with suppress(OSError):
            connection.send(encode(Refused(0, int(code), message)), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        connection.close()
        os.close(peer.pidfd)

    def closed(self, session: Session, connection: socket.socket, reason: str) -> None:
        """A session ended its connection."""
        self._loop.unregister(connection.fileno())
        if self._sessions.pop(connection.fileno(), None) is not None:
            self._of_process[session.peer.pid] -= 1
            if not self._of_process[session.peer.pid]:
                del self._of_process[session.peer.pid]
        connection.close()
        client = session.client
        if client:
            self.copies.end(client, lambda: self.node.detach(client, reason, self.clock()))
        if self._pidfds.get(session.client) != session.peer.pidfd:
            os.close(session.peer.pidfd)

    # ---- processes

    def adopt_engines(self) -> None:
        """Hear of the end of processes that attached to the data plane before this one."""
        for engine in list(self.node.engines.values()):
            if engine.connected:  # a gateway has gone on with it, and hears of its process
                continue
            if not engine.pid:  # of another pid namespace: only it can say that it is there
                continue
            pidfd = open_process(engine.pid, engine.started)
            if pidfd is None:
                self.node.process_gone(engine.client, self.clock())
            else:
                self._watch(engine.client, pidfd)

    def _watch(self, client: int, pidfd: int) -> None:
        self._pidfds[client] = pidfd
        self._loop.register(pidfd, lambda: self._process_gone(client))

    def watch(self, session: Session) -> None:
        """An engine attached: hear of its process's end."""
        before = self._pidfds.pop(session.client, None)
        if before is not None:  # it goes on with an attachment whose connection is gone
            self._loop.unregister(before)
            os.close(before)
        self._watch(session.client, session.peer.pidfd)

    def unwatch(self, client: int) -> None:
        """An engine said goodbye; its session still owns the pidfd."""
        pidfd = self._pidfds.pop(client, None)
        if pidfd is not None:
            self._loop.unregister(pidfd)

    def _process_gone(self, client: int) -> None:
        if not has_exited(self._pidfds[client]):
            return  # an event of another descriptor that had the same number a moment ago
        pidfd = self._pidfds.pop(client)
        self._loop.unregister(pidfd)
        for session in list(self._sessions.values()):
            if session.client == client:
                session.close("process exited")
                break
        else:
            os.close(pidfd)
        self.copies.end(client, lambda: self.node.process_gone(client, self.clock()), gone=True)

    # ---- holders

    def holders(self, pid: int | None = None) -> int:
        """Connections that hold memory, of all processes or of one."""
        return sum(each.holder and (pid is None or each.peer.pid == pid) for each in self._sessions.values())

    def serve_supervisor(self, connection: socket.socket) -> None:
        """Whoever started this process holds its memory from the first moment. Raises OSError."""
        connection.setblocking(False)
        self._begin(connection, peer_of(connection)).hold(SUPERVISORS_ID)

    def keepable(self) -> list[tuple[str, int, Keepable]]:
        """Everything that holders get, by kind and number."""
        return [*self.memory.files(), *self.sockets()]

    def made(self, kind: str, number: int, file: Keepable) -> None:
        """New memory, or a new socket: holders get it."""
        for session in list(self._sessions.values()):
            if session.holder:
                session.send_held(0, [(kind, number, file)])

    def dropped(self, kind: str, number: int) -> None:
        """Memory is being given back: holders may close it, engines may unmap it. A socket was closed."""
        if kind == "segment":
            self.copies.devices.retired(number)
        for session in list(self._sessions.values()):
            if session.holder:
                session.send_dropped(kind, number)
            elif kind == "segment":
                session.segment_retired(number)

    def close(self) -> None:
        """Stop listening, wait for copies that run, and remove the socket's name."""
        self.copies.close()
        self._loop.unregister(self._listener.fileno())
        self._listener.close()
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self._lock_fd)


def _descriptors_to_spare(limit: int) -> bool:
    """Whether enough descriptors stay free for segments and areas of those who are connected."""
    return limit - len(os.listdir("/proc/self/fd")) > min(SPARE_DESCRIPTORS, limit // 8)


def _lock(path: str) -> int:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise OSError(f"engine socket path is longer than {MAX_SOCKET_PATH_BYTES} bytes: {path}")
    Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise SocketInUse(f"another data plane serves {path}") from None
    return fd


def _listen(path: str, *, open_to_all: bool) -> socket.socket:
    """A listening socket that appears under its name complete: whoever sees it can connect."""
    making = f"{path}.new"
    for name in (making, path):
        with suppress(FileNotFoundError):
            os.unlink(name)  # we hold the lock: whoever bound it is gone
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)
    try:
        listener.bind(making)
    finally:
        os.umask(before)
    if open_to_all:  # the allow-list decides, on the kernel's word
        os.chmod(making, 0o666)
    listener.listen(128)
    listener.setblocking(False)
    os.rename(making, path)
    return listener
