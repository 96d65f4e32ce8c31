"""A process that sends every message back: `python -m benchmarks.harness.echo FD`. Ends when the other side closes."""

import socket
import sys


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as peer:
        while message := peer.recv(65_536):
            peer.send(message)


if __name__ == "__main__":
    main()
