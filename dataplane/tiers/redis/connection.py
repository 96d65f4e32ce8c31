"""One connection to a Redis server. Every step has a deadline; after any failure the connection is closed.

The exceptions are those of `replies`: TimeoutError, ConnectionError, ValueError. Opening raises TierError.
"""

import ssl
import time
from collections.abc import Sequence
from typing import Any

import redis.exceptions as errors
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.retry import Retry

from dataplane.protocol.stored_blocks import Buffer
from dataplane.tiers.redis.parameters import Address, RedisParameters
from dataplane.tiers.redis.replies import BlockParser
from dataplane.tiers.references import read_certificates, resolve
from dataplane.tiers.tier import TierError


class BlockConnection:
    """A connection that is authenticated and has its database selected."""

    def __init__(self, address: Address, parameters: RedisParameters, deadline: float) -> None:
        """Connect. Raises TierError, or TimeoutError if the deadline has passed."""
        self.address = address
        timeout = min(parameters.connect_timeout_s, deadline - time.monotonic())
        if timeout <= 0:
            raise TimeoutError("the deadline has passed")
        self._connection = _connection(address, parameters, timeout)
        try:
            self._connection.connect()
            reply = self.execute("PING", deadline=time.monotonic() + timeout)
        except (errors.RedisError, OSError, ValueError, RecursionError) as error:
            self._connection.disconnect()
            if isinstance(error, (TimeoutError, errors.TimeoutError)) and time.monotonic() >= deadline:
                raise TimeoutError("the deadline has passed") from None
            raise TierError(f"{server(address)}: {_why_not(error, timeout)}") from None
        if isinstance(reply, errors.ResponseError) and reply.status_code != "NOPERM":
            self._connection.disconnect()
            raise TierError(f"{server(address)}: {_why_not(reply, timeout)}")

    def send(self, pieces: Sequence[Buffer], deadline: float) -> None:
        """Send bytes. Raises TimeoutError, ConnectionError."""
        self._parser.sock.send(pieces, deadline)

    def execute(self, *words: str | bytes | int, deadline: float) -> Any:
        """Send a short command and return its reply; an error that the server answered is returned."""
        self.send([b"".join(self._connection.pack_command(*words))], deadline)
        return self._parser.read_short(deadline)

    @property
    def parser(self) -> BlockParser:
        """The reader of replies."""
        return self._parser

    @property
    def _parser(self) -> BlockParser:
        parser = self._connection._parser
        assert isinstance(parser, BlockParser)
        return parser

    def close(self) -> None:
        """Close the connection. May be called twice, and from another thread."""
        self._connection.disconnect()


def server(address: Address) -> str:
    """Return what messages call a server."""
    return f"Redis server {address[0]}:{address[1]}"


def refusal(error: errors.ResponseError) -> str | None:
    """Return a sentence if the error reply means that the server can serve no block at all, else None."""
    for text, sentence in _ERR_REFUSALS.items():
        if text in str(error):
            return sentence
    return _REFUSALS.get(error.status_code or "")


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


def _connection(address: Address, parameters: RedisParameters, timeout: float) -> Connection:
    options: dict[str, Any] = {
        "host": address[0],
        "port": address[1],
        "db": parameters.database,
        "username": parameters.username or None,
        "password": resolve("password", parameters.password) or None,
        "protocol": 2,
        "parser_class": BlockParser,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,
    }
    if not parameters.tls:
        return Connection(**options)
    for field in ("ca_file", "certificate_file", "key_file"):
        if path := getattr(parameters, field):
            read_certificates(field, path)  # OpenSSL would read a device for ever
    return SSLConnection(
        **options,
        ssl_ca_certs=parameters.ca_file or None,
        ssl_certfile=parameters.certificate_file or None,
        ssl_keyfile=parameters.key_file or None,
    )


def _why_not(error: Exception, timeout: float) -> str:
    """Return a clause that says why there is no connection. Text of the server is not part of it."""
    cause = error.__context__ if isinstance(error, errors.ConnectionError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {cause.verify_message}"
    if isinstance(cause, (FileNotFoundError, PermissionError)):
        return f"ca_file, certificate_file or key_file cannot be read: {cause.strerror}"
    if isinstance(error, errors.ResponseError):
        return refusal(error) or "the server refuses the connection with an error"
    if isinstance(error, (TimeoutError, errors.TimeoutError)):
        return f"no answer within {timeout:.1f} s"
    if isinstance(cause, (ValueError, RecursionError, errors.InvalidResponse)):
        return "the server answers, but not in the protocol of Redis"
    return f"cannot connect: {cause.strerror if isinstance(cause, OSError) and cause.strerror else 'no connection'}"
