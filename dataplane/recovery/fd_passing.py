"""The child's end of a supervisor's socket: receives the memory of the previous data plane, and later sends all new
memory.

The supervisor sends `MemoryHeld`, as a data plane does to a holder; a datagram with fewer fds than the maximum ends the
list. Until then the child waits with everything imported: a standby process costs only memory and takes over in
milliseconds. It sends an empty `MemoryHeld` when it begins to wait, and another one when it has received the list, so
that a supervisor does not wait for a child that hangs.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field

from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.engine import MAX_DATAGRAM_BYTES, MAX_FDS_PER_DATAGRAM, EngineReply, MemoryHeld

_decoder = decoder(EngineReply)


class SupervisorGone(Exception):
    """The supervisor closed its end of the socket."""


@dataclass(slots=True)
class Handover:
    """Memory that a supervisor handed to its child."""

    connection: socket.socket
    memory: list[tuple[str, int, int]] = field(default_factory=list)
    """(kind, number, fd) of the previous data plane's memory; empty for a cold start."""


def wait(fd: int) -> Handover:
    """Wait for the supervisor's handover. Raises SupervisorGone, and OSError if the fd is not a socket."""
    connection = socket.socket(fileno=fd)
    connection.set_inheritable(False)
    handover = Handover(connection)
    _say_here(connection)  # ready to begin
    while True:
        data, fds, _, _ = socket.recv_fds(
            connection, MAX_DATAGRAM_BYTES, MAX_FDS_PER_DATAGRAM, socket.MSG_CMSG_CLOEXEC
        )
        try:
            message = decode(_decoder, data) if data else None
        except ProtocolError:
            message = None
        if not isinstance(message, MemoryHeld) or len(message.memory) != len(fds):
            for each in [*fds, *(each for _, _, each in handover.memory)]:
                os.close(each)
            connection.close()
            raise SupervisorGone(
                "the supervisor ended" if not data else "the supervisor sent an unexpected message"
            )
        handover.memory += [
            (each.kind, each.number, fd) for each, fd in zip(message.memory, fds, strict=True)
        ]
        if len(message.memory) < MAX_FDS_PER_DATAGRAM:
            _say_here(connection)  # the list is complete
            return handover


def _say_here(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.send(encode(MemoryHeld(0, 0, [])), socket.MSG_NOSIGNAL)
