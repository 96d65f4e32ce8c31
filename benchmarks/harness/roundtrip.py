"""What a message costs on this machine: AF_UNIX SEQPACKET to another Python process and back, nothing else."""

import socket
import subprocess
import sys

MESSAGE = bytes(200)


class RoundTrip:
    """An echo process; `go(n)` makes n round trips of 200 bytes."""

    def __init__(self) -> None:
        self._socket, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.harness.echo", str(child_end.fileno())],
                pass_fds=[child_end.fileno()],
            )
        self.go(1)  # the process is up

    def go(self, times: int = 1) -> None:
        """That many round trips, one after the other."""
        for _ in range(times):
            self._socket.send(MESSAGE)
            self._socket.recv(len(MESSAGE))

    def close(self) -> None:
        """End the echo process."""
        self._socket.close()
        self._process.wait(30)
