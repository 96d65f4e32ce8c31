"""Reports of a data plane to systemd (`sd_notify`): it serves, it stops, and one line for `systemctl status`."""

from __future__ import annotations

import socket
from collections.abc import MutableMapping

import structlog

_VARIABLE = "NOTIFY_SOCKET"

log = structlog.stdlib.get_logger()


class ServiceManager:
    """Connection to systemd. Without an address, it does nothing. No call waits."""

    def __init__(self, address: str = "") -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._is_set = address.startswith(("/", "@"))

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> ServiceManager:
        """Return the service manager of this process. Removes its variable, so that no child process uses it."""
        return cls(environ.pop(_VARIABLE, ""))

    def ready(self, status: str) -> None:
        """Report that the data plane serves. `status` is one line for `systemctl status`."""
        self._send(f"READY=1\nSTATUS={' '.join(status.splitlines())}")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=")

    def _send(self, message: str) -> None:
        if not self._is_set:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
                connection.sendto(message.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, self._address)
        except OSError as error:
            log.warning("service_manager.unreachable", error=error.strerror)
