"""`python -m dataplane.ping`: ask the data plane of this machine for an answer, as a health check.

The exit code is 0 if it answers, and 1, with the reason on the standard error, if nothing listens or no answer comes: a
process that hangs still accepts connections. The request is `Detach` without an attached engine, which the data plane
refuses without a trace.
"""

import socket
import sys

from dataplane.engines.settings import default_socket

ANSWER_S = 5.0
REQUEST = b"\x92\xa6detach\x01"
"""`dataplane.protocol.engine.Detach`, encoded."""
DATAGRAM_BYTES = 1 << 16


def ping(path: str, answer_s: float = ANSWER_S) -> None:
    """Wait for an answer on an engine socket. Raises OSError (TimeoutError: there is none)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(answer_s)
        connection.connect(path)
        connection.send(REQUEST)
        if not connection.recv(DATAGRAM_BYTES):
            raise ConnectionResetError("the data plane closed the connection")


def main() -> int:
    """Ping the engine socket that this process's environment names, else the default socket of the user."""
    path = default_socket()
    try:
        ping(path)
    except OSError as error:
        sys.stderr.write(f"{path}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
