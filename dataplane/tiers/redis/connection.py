"""One connection to a Redis server. Every step has a deadline; after any failure the connection is closed.

The exceptions are those of `resp`: TimeoutError, ConnectionError, ValueError. Opening raises TierError.
"""

import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from dataplane.protocol.stored_blocks import Buffer
from dataplane.tiers.redis.parameters import Address, RedisParameters
from dataplane.tiers.redis.resp import ErrorReply, Reply, ReplyReader, TimedSocket, packed
from dataplane.tiers.references import read_certificates, resolve
from dataplane.tiers.tier import TierError

_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Seconds without traffic after which the kernel asks an idle server, between its questions, and how many it asks."""
_WITHOUT_USERS = "wrong number of arguments for 'auth'"
"""What a server before Redis 6, which has one password and no users, answers to AUTH with a user."""


class BlockConnection:
    """A connection that is authenticated and has its database selected."""

    def __init__(self, address: Address, parameters: RedisParameters, deadline: float) -> None:
        """Connect. Raises TierError, or TimeoutError if the deadline has passed."""
        self.address = address
        _left(deadline)
        commands = _handshake(parameters)
        for field in ("ca_file", "certificate_file", "key_file"):
            if path := getattr(parameters, field):
                read_certificates(field, path)  # OpenSSL would read a device for ever
        with ExitStack() as opened:
            try:
                found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)  # has no timeout, so it is not counted
                until = min(deadline, time.monotonic() + parameters.connect_timeout_s)
                sock = _connected(found, until)
                if parameters.tls:
                    sock = _encrypted(sock, address[0], parameters, until)
                self._sock = opened.enter_context(closing(TimedSocket(sock)))
                self.replies = ReplyReader(self._sock)
                refused = self._refused(commands, until)
            except (OSError, ValueError) as error:
                if isinstance(error, TimeoutError) and time.monotonic() >= deadline:
                    raise TimeoutError("the deadline has passed") from None
                raise TierError(f"{server(address)}: {_why_not(error, parameters)}") from None
            if refused is not None:
                why = refusal(refused) or "the server refuses the connection with an error"
                raise TierError(f"{server(address)}: {why}")
            opened.pop_all()

    def _refused(self, commands: Sequence[Sequence[bytes]], deadline: float) -> ErrorReply | None:
        """Introduce this client. Return the error with which the server refuses it, or None."""
        for words in commands:
            reply = self.execute(*words, deadline=deadline)
            if isinstance(reply, ErrorReply) and _WITHOUT_USERS in reply.message.lower():
                reply = self.execute(words[0], words[-1], deadline=deadline)
            if isinstance(reply, ErrorReply):
                return reply
            if reply != b"OK":
                raise ValueError("expected OK")
        reply = self.execute(b"PING", deadline=deadline)
        return reply if isinstance(reply, ErrorReply) and reply.code != "NOPERM" else None

    def send(self, pieces: Sequence[Buffer], deadline: float) -> None:
        """Send bytes. Raises TimeoutError, ConnectionError."""
        self._sock.send(pieces, deadline)

    def execute(self, *words: bytes, deadline: float) -> Reply:
        """Send a short command and return its reply."""
        self.send([packed(*words)], deadline)
        return self.replies.read_short(deadline)

    def close(self) -> None:
        """Close the connection. May be called twice, and from another thread."""
        self._sock.close()


def server(address: Address) -> str:
    """Return what messages call a server."""
    return f"Redis server {address[0]}:{address[1]}"


def refusal(error: ErrorReply) -> str | None:
    """Return a sentence if the error reply means that the server can serve no block at all, else None."""
    for text, sentence in _ERR_REFUSALS.items():
        if text in error.message:
            return sentence
    return _REFUSALS.get(error.code)


_ERR_REFUSALS = {
    "DB index is out of range": "the server has no database of this number",
    "without any password configured": "the server has no password for this user: remove password",
    "max number of clients": "the server has no connection left",
}
_REFUSALS = {
    "NOAUTH": "the server asks for a password: set password",
    "WRONGPASS": "the username or the password is wrong",
    "NOPERM": "the user has no permission for the commands or the keys of the tier",
    "LOADING": "the server is loading its data",
    "READONLY": "the server is a read-only replica",
    "MASTERDOWN": "the server is a replica that has lost its master",
    "MISCONF": "the server refuses writes because it cannot write its snapshots to disk",
}


def _handshake(parameters: RedisParameters) -> list[list[bytes]]:
    """Return the commands that introduce a client, each of which the server answers with OK. Raises TierError."""
    commands: list[list[bytes]] = []
    if password := resolve("password", parameters.password):
        user = [parameters.username.encode()] if parameters.username else []
        # Bytes of the environment that are no UTF-8 are surrogates in its strings.
        commands.append([b"AUTH", *user, password.encode(errors="surrogateescape")])
    if parameters.database:
        commands.append([b"SELECT", b"%d" % parameters.database])
    return commands


def _connected(found: Sequence[tuple[int, int, int, str, Any]], deadline: float) -> socket.socket:
    """Connect to the first address that answers. Raises OSError.

    Each gets an equal share of the time that is left: the first ones may be of a network that loses packets.
    """
    failure = OSError()
    for number, (family, kind, protocol, _, target) in enumerate(found):
        sock = None
        try:
            sock = socket.socket(family, kind, protocol)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEP_ALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            sock.settimeout(_left(deadline) / (len(found) - number))
            sock.connect(target)
        except OSError as error:
            failure = error
            if sock is not None:
                sock.close()
        else:
            return sock
    raise failure


def _encrypted(sock: socket.socket, host: str, parameters: RedisParameters, deadline: float) -> ssl.SSLSocket:
    """Begin TLS on a connection, which is closed if that fails. Raises OSError, ValueError."""
    try:
        context = ssl.create_default_context()
        if parameters.ca_file:
            context.load_verify_locations(parameters.ca_file)
        if parameters.certificate_file or parameters.key_file:
            context.load_cert_chain(parameters.certificate_file, parameters.key_file or None)
        sock.settimeout(_left(deadline))
        return context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def _left(deadline: float) -> float:
    """Return the seconds to a deadline. Raises TimeoutError."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the deadline has passed")
    return seconds


def _why_not(error: OSError | ValueError, parameters: RedisParameters) -> str:
    """Return a clause that says why there is no connection. Text of the server is not part of it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {error.verify_message}"
    if isinstance(error, (FileNotFoundError, PermissionError)):
        return f"ca_file, certificate_file or key_file cannot be read: {error.strerror}"
    if isinstance(error, TimeoutError):
        return f"no answer within {parameters.connect_timeout_s:.1f} s"
    if isinstance(error, OSError):
        return f"cannot connect: {error.strerror or 'no connection'}"
    return "the server answers, but not in the protocol of Redis"
