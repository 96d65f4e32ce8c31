"""The child's end of a supervisor's socket: memory of the data plane before comes in, later all new memory goes out.

The supervisor says `Held`, as a data plane does to a holder; a datagram with fewer fds than fit ends the list. Until
then the child waits, everything imported: a spare costs nothing but memory, and takes over in milliseconds. It says an
empty `Held` when it waits, and another one as soon as it was told: a supervisor does not wait for one that hangs.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field

from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.engine import MAX_DATAGRAM_BYTES, MAX_FDS_PER_DATAGRAM, EngineReply, Held

_decoder = decoder(EngineReply)


class SupervisorGone(Exception):
    """Nobody will say what to do: the supervisor closed its end."""


@dataclass(slots=True)
class Handover:
    """What a supervisor gave to its child."""

    connection: socket.socket
    memory: list[tuple[str, int, int]] = field(default_factory=list)
    """(kind, number, fd) of the data plane before; empty when the start is to be cold."""


def wait(fd: int) -> Handover:
    """Wait for the supervisor's word. Raises SupervisorGone, and OSError when the fd is no socket."""
    connection = socket.socket(fileno=fd)
    connection.set_inheritable(False)
    handover = Handover(connection)
    _say_here(connection)  # ready to begin
    while True:
        data, fds, _, _ = socket.recv_fds(
            connection, MAX_DATAGRAM_BYTES, MAX_FDS_PER_DATAGRAM, socket.MSG_CMSG_CLOEXEC
        )
        try:
            said = decode(_decoder, data) if data else None
        except ProtocolError:
            said = None
        if not isinstance(said, Held) or len(said.memory) != len(fds):
            for each in [*fds, *(each for _, _, each in handover.memory)]:
                os.close(each)
            connection.close()
            raise SupervisorGone("the supervisor ended" if not data else "the supervisor said something else")
        handover.memory += [(each.kind, each.number, fd) for each, fd in zip(said.memory, fds, strict=True)]
        if len(said.memory) < MAX_FDS_PER_DATAGRAM:
            _say_here(connection)  # begins
            return handover


def _say_here(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.send(encode(Held(0, 0, [])), socket.MSG_NOSIGNAL)
