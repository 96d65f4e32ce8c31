"""The origin of a request: the client's address, and the scheme that the browser uses. Forwarding headers count only if
a proxy that the settings name sent them, because any client can send X-Forwarded-For."""

import ipaddress
from collections.abc import Mapping
from typing import Any

from app.settings import Network
from dataplane.base import tracing

_OF_PROXIES = (b"x-forwarded-for", b"forwarded", b"x-real-ip")
"""Headers in which proxies name the client that they forward."""


class ClientAddresses:
    """Finds the client's address and scheme. It trusts the forwarding headers of `proxies`, through chains of these
    proxies."""

    def __init__(self, proxies: tuple[Network, ...]) -> None:
        self._proxies = proxies

    def address(self, scope: Any, headers: Mapping[bytes, str]) -> str:
        """Return the address of the original client, as far as it is known; empty for a unix socket."""
        peer = str(scope["client"][0]) if scope.get("client") else ""
        if not self._proxies or not self._is_proxy(peer):
            return peer[:128]
        for hop in reversed(headers.get(b"x-forwarded-for", "").split(",")):
            name = _bare(hop.strip())
            if name is None:
                break
            peer = name
            if not self._is_proxy(peer):
                break
        return peer[:128]

    def is_unannounced(self, scope: Any, headers: Mapping[bytes, str]) -> bool:
        """Return whether the request comes from a proxy that the settings do not name: it has forwarding headers that
        are not trusted."""
        if not any(name in headers for name in _OF_PROXIES):
            return False
        peer = str(scope["client"][0]) if scope.get("client") else ""
        return not self._is_proxy(peer)

    def is_secure(self, scope: Any, headers: Mapping[bytes, str]) -> bool:
        """Return whether the browser uses HTTPS."""
        if scope.get("scheme") == "https":
            return True
        peer = str(scope["client"][0]) if scope.get("client") else ""
        if not self._proxies or not self._is_proxy(peer):
            return False
        return headers.get(b"x-forwarded-proto", "").split(",")[-1].strip().lower() == "https"

    def _is_proxy(self, name: str) -> bool:
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._proxies)


def _bare(hop: str) -> str | None:
    """Return an address without its port, or None if the text is not an address."""
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    try:
        return str(ipaddress.ip_address(hop))
    except ValueError:
        return None


def trace_id(headers: Mapping[bytes, str]) -> str:
    """Return the trace id of the request's span, if the span is recorded, or else of its traceparent; empty without
    either."""
    return tracing.recorded_trace_id() or tracing.trace_id_of(headers.get(b"traceparent", ""))
