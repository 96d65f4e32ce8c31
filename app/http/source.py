"""Where a request comes from: the address, and the scheme that the browser sees. Only proxies that the settings name
are believed: anybody can send an X-Forwarded-For."""

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from app.settings import Network

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?", re.ASCII)
_NO_TRACE = "0" * 32
_OF_PROXIES = (b"x-forwarded-for", b"forwarded", b"x-real-ip")
"""Headers by which proxies say for whom they ask."""


class Sources:
    """`proxies` are believed, and those behind them as far as they are proxies of ours, too."""

    def __init__(self, proxies: tuple[Network, ...]) -> None:
        self._proxies = proxies

    def address(self, scope: Any, headers: Mapping[bytes, str]) -> str:
        """Of whoever sent the request first, as far as is known; empty for a unix socket."""
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
        """Whether a proxy sends the request that the settings do not name: it says for whom, and is not believed."""
        if not any(name in headers for name in _OF_PROXIES):
            return False
        peer = str(scope["client"][0]) if scope.get("client") else ""
        return not self._is_proxy(peer)

    def is_secure(self, scope: Any, headers: Mapping[bytes, str]) -> bool:
        """Whether the browser speaks HTTPS."""
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
    """An address without its port; None for what is none."""
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    try:
        return str(ipaddress.ip_address(hop))
    except ValueError:
        return None


def trace_id(headers: Mapping[bytes, str]) -> str:
    """Of the traceparent that the request brings; empty when there is none."""
    match = _TRACEPARENT.fullmatch(headers.get(b"traceparent", ""))
    found = "" if match is None else match[1]
    return "" if found == _NO_TRACE else found
