"""Client of the memory keeper: query the memory that a stopped data plane left, and release it."""

import os
import socket
from contextlib import suppress
from pathlib import Path
from struct import Struct

from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.keeper import (
    SOCKET_NAME,
    DescribeMemory,
    KeeperRefused,
    Keeping,
    Release,
    Released,
    Reply,
)

ANSWER_TIMEOUT_S = 5.0
MAX_REPLY_BYTES = 4096

_CREDENTIALS = Struct("iII")

_replies = decoder(Reply)


class KeeperUnavailable(Exception):
    """The keeper did not serve a request; the message says why."""


def describe(state_dir: Path) -> Keeping | None:
    """Return the memory that the keeper of a state directory holds; None if there is no keeper.

    Raises KeeperUnavailable, OSError.
    """
    reply = _ask(state_dir, DescribeMemory())
    if reply is None or isinstance(reply, Keeping):
        return reply
    raise KeeperUnavailable(_reason(reply))


def release(state_dir: Path, reason: str) -> Released | None:
    """Make the keeper of a state directory release its memory on purpose; return None if there is no keeper.

    Raises KeeperUnavailable, OSError.
    """
    reply = _ask(state_dir, Release(reason, on_purpose=True))
    if reply is None or isinstance(reply, Released):
        return reply
    raise KeeperUnavailable(_reason(reply))


def _reason(reply: Reply) -> str:
    return reply.message if isinstance(reply, KeeperRefused) else f"it answered {type(reply).__name__}"


def _ask(state_dir: Path, message: DescribeMemory | Release) -> Reply | None:
    with suppress(FileNotFoundError, ConnectionRefusedError):
        directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
                connection.settimeout(ANSWER_TIMEOUT_S)
                # The path of a state directory may be too long for a socket address.
                connection.connect(f"/proc/self/fd/{directory}/{SOCKET_NAME}")
                raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                uid = _CREDENTIALS.unpack(raw)[1]
                if uid not in (os.geteuid(), 0):
                    raise KeeperUnavailable(f"it runs as uid {uid}, expected {os.geteuid()} or 0")
                connection.send(encode(message), socket.MSG_NOSIGNAL)
                reply: Reply = decode(_replies, connection.recv(MAX_REPLY_BYTES))
                return reply
        except (TimeoutError, ConnectionResetError, BrokenPipeError, ProtocolError) as error:
            raise KeeperUnavailable(f"the memory keeper does not answer: {error}") from None
        finally:
            os.close(directory)
    return None
