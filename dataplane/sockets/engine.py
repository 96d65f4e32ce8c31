"""The engine socket (AF_UNIX SEQPACKET): accepts engines, and watches for the exit of their processes."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from dataplane.base.settings import MAX_SOCKET_PATH_BYTES
from dataplane.core.engines.engines import Engine
from dataplane.io.loop import Loop
from dataplane.io.peers import open_process
from dataplane.ipc.processes import Peer, has_exited, peer_of
from dataplane.protocol.codec import encode
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.nodes import Expel, Expelled
from dataplane.protocol.engine import Refused
from dataplane.protocol.events import EngineRefused
from dataplane.sockets.session import EngineServices, Session

MAX_CONNECTIONS = 4096
DESCRIPTORS_PER_CONNECTION = 2
"""The connection's socket and its process's pidfd. One process may use up to half of the connections that the
descriptor limit allows."""
ACCEPT_PAUSE_S = 0.2
RESERVED_DESCRIPTORS = 64
"""Descriptors kept free for segments and areas of connected peers; new peers are refused before these are used."""

log = structlog.stdlib.get_logger()


class SocketInUse(Exception):
    """Another data plane serves this socket."""


class EngineServer:
    """Accepts engines on one path."""

    def __init__(self, loop: Loop, services: EngineServices, path: str, allowed_uids: frozenset[int]) -> None:
        self._services = services
        self._node = services.node
        self._clock = services.clock
        self._path = path
        self._loop = loop
        self._allowed = allowed_uids | {os.geteuid(), 0}
        self._sessions: dict[int, Session] = {}
        self._of_process: Counter[int] = Counter()
        """Number of connections of each pid."""
        self._pidfds: dict[int, int] = {}
        """pidfd of each attached client, until its process is gone."""
        self._lock_fd = _lock(path)
        self._listener = _listen(path, open_to_all=bool(allowed_uids))
        self._loop.register(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:  # the peer is already gone
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
            self._reject(connection, peer, *refusal)
            return
        session = Session(self._services, connection, peer, self._attached, self._unwatch, self._closed)
        self._sessions[connection.fileno()] = session
        self._of_process[peer.pid] += 1
        self._loop.register(connection.fileno(), session.on_readable)

    def _refusal(self, peer: Peer) -> tuple[Code, str] | None:
        """Return the reason to refuse a peer; None if it is accepted."""
        if peer.uid not in self._allowed:
            return Code.NOT_ALLOWED, f"uid {peer.uid} is not on the allow-list"
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        share = min(MAX_CONNECTIONS, limit // DESCRIPTORS_PER_CONNECTION) // 2
        if self._of_process[peer.pid] >= share:
            return Code.TOO_MANY_CLIENTS, f"at most {share} connections of one process are served"
        if len(self._sessions) >= MAX_CONNECTIONS or not _has_free_descriptors(limit):
            message = f"at most {MAX_CONNECTIONS} connections are served, fewer when descriptors are short"
            return Code.TOO_MANY_CLIENTS, message
        return None

    def _pause_accepting(self) -> None:
        listener = self._listener.fileno()
        self._loop.unregister(listener)
        self._loop.once(ACCEPT_PAUSE_S, lambda: self._loop.register(listener, self._accept))

    def _reject(self, connection: socket.socket, peer: Peer, code: Code, message: str) -> None:
        self._node.emit(EngineRefused(self._clock(), peer.pid, peer.uid, code.name.lower(), message))
        with suppress(OSError):
            connection.send(encode(Refused(0, int(code), message)), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        connection.close()
        os.close(peer.pidfd)

    def _closed(self, connection: int, reason: str) -> None:
        """Clean up after the session of a connection, which ends."""
        self._loop.unregister(connection)
        session = self._sessions.pop(connection)
        self._of_process[session.peer.pid] -= 1
        if not self._of_process[session.peer.pid]:
            del self._of_process[session.peer.pid]
        session.connection.close()
        if session.client:
            self._node.detach(session.client, reason, self._clock())
        if self._pidfds.get(session.client) != session.peer.pidfd:
            os.close(session.peer.pidfd)

    # ---- processes

    def adopt_engines(self) -> None:
        """Watch the processes that attached to the previous data plane."""
        for engine in list(self._node.engines.values()):
            if engine.connected:  # a gateway has resumed it and watches its process
                continue
            if not engine.pid:  # in another pid namespace: only the process itself can show that it lives
                continue
            pidfd = open_process(engine.pid, engine.started)
            if pidfd is None:
                self._node.process_gone(engine.client, self._clock())
            else:
                self._watch(engine.client, pidfd)

    def _watch(self, client: int, pidfd: int) -> None:
        self._pidfds[client] = pidfd
        self._loop.register(pidfd, lambda: self._process_gone(client))

    def _attached(self, client: int, pidfd: int) -> None:
        """Watch the process of an attached engine."""
        before = self._pidfds.pop(client, None)
        if before is not None:  # it resumes an attachment whose connection is gone
            self._loop.unregister(before)
            os.close(before)
        self._watch(client, pidfd)

    def _unwatch(self, client: int) -> None:
        """Stop watching a detached engine; its session still owns the pidfd."""
        pidfd = self._pidfds.pop(client, None)
        if pidfd is not None:
            self._loop.unregister(pidfd)

    def _process_gone(self, client: int) -> None:
        if not has_exited(self._pidfds[client]):
            return  # a stale event of another descriptor that had the same number
        pidfd = self._pidfds.pop(client)
        self._loop.unregister(pidfd)
        for session in list(self._sessions.values()):
            if session.client == client:
                session.close("process exited")
                break
        else:
            os.close(pidfd)
        self._node.process_gone(client, self._clock())

    def expel(self, message: Expel) -> Expelled:
        """Expel the process of an engine, kill it, or let it attach again. Raises ProtocolError; then nothing has
        changed."""
        expulsions, now = self._node.expulsions, self._clock()
        engines = expulsions.attachments(message.client)
        clients = {engine.client for engine in engines}
        if not message.on:
            if message.force or message.kill:
                raise ProtocolError(Code.BAD_FIELD, "expected true with force or kill", "on")
            expulsions.readmit(message.client, now)
            return expulsions.state(message.nonce, engines, 0, killed=False)
        leased = expulsions.held(message.client)
        if message.kill:
            self._kill(engines)
            expulsions.killed(message.client, now)
        if message.force or not message.kill:
            leased = expulsions.expel(message.client, now, force=message.force)
        for session in list(self._sessions.values()):
            if session.client in clients:
                session.close("an operator killed it" if message.kill else "an operator expelled it")
        return expulsions.state(message.nonce, engines, leased, killed=message.kill)

    def _kill(self, engines: Sequence[Engine]) -> None:
        """Send SIGKILL to the process of some attachments. Raises ProtocolError."""
        pid = engines[0].pid
        pidfd = next((self._pidfds[each.client] for each in engines if each.client in self._pidfds), None)
        if pid == os.getpid():
            raise ProtocolError(Code.CANNOT_KILL, "the engine is in the data plane's own process", "kill")
        if pidfd is None:
            raise ProtocolError(
                Code.CANNOT_KILL, "the engine's process has exited, or belongs to another pid namespace", "kill"
            )
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:  # it has already exited
            pass
        except OSError as error:
            raise ProtocolError(
                Code.CANNOT_KILL,
                f"SIGKILL to process {pid} failed: {error.strerror}; kill it as its own user or as root",
                "kill",
            ) from None

    def segment_retired(self, number: int) -> None:
        """Tell engines that they may unmap a segment."""
        for session in list(self._sessions.values()):
            session.segment_retired(number)

    def close(self) -> None:
        """Stop listening, and remove the socket's name."""
        self._loop.unregister(self._listener.fileno())
        self._listener.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._lock_fd)


def _has_free_descriptors(limit: int) -> bool:
    """Return whether enough descriptors stay free for segments and areas of connected peers."""
    try:
        return limit - len(os.listdir("/proc/self/fd")) > min(RESERVED_DESCRIPTORS, limit // 8)
    except OSError:  # not even one is free, or the machine has none
        return False


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
    """Return a listening socket that gets its name only when it is ready, so that any process that sees it can
    connect."""
    making = f"{path}.new"
    for name in (making, path):
        with suppress(FileNotFoundError):
            os.unlink(name)  # this process holds the lock, so the socket's owner is gone
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    listener.bind(making)
    os.chmod(making, 0o666 if open_to_all else 0o600)  # if open, the allow-list decides by the kernel's credentials
    listener.listen(128)
    listener.setblocking(False)
    os.rename(making, path)
    return listener
