"""`python -m dataplane.ping [SOCKET]`: ask the data plane of this machine for an answer, as a health check.

The holder of the memory answers at `holder.sock` of the state directory, too, by refusing the request. The exit code
is 0 if an answer comes, and 1, with the reason on the standard error, if nothing listens or no answer comes: a process
that hangs still accepts connections.
"""

import socket
import sys

from dataplane.engines.settings import default_socket

ANSWER_S = 5.0
REQUEST = b"\x93\xa4ping\x01\x02"
"""`dataplane.protocol.engine.Ping`, encoded."""
DATAGRAM_BYTES = 1 << 16


def ping(path: str, answer_s: float = ANSWER_S) -> None:
    """Wait for an answer, of whatever kind. Raises OSError (TimeoutError: there is none)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(answer_s)
        connection.connect(path)
        connection.send(REQUEST)
        if not connection.recv(DATAGRAM_BYTES):
            raise ConnectionResetError("the connection was closed")


def main(arguments: list[str]) -> int:
    """Ping the socket of the arguments, else the engine socket that this process's environment names, else the default
    socket of the user."""
    path = arguments[0] if arguments else default_socket()
    try:
        ping(path)
    except OSError as error:
        sys.stderr.write(f"{path}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
