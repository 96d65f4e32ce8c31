"""Hosts and ports in settings, as sockets and URLs need them."""

import ipaddress
import re

_NUMBERS = re.compile(r"(?:0x[0-9a-f]+|[0-9]+)(?:\.(?:0x[0-9a-f]+|[0-9]+)){,3}\Z", re.ASCII | re.IGNORECASE)
_HOST = re.compile(r"[\w.:-]+(%[\w.-]+)?")
IP = ipaddress.IPv4Address | ipaddress.IPv6Address


def without_brackets(host: str) -> str:
    """Return a host without the brackets that URLs have around an IPv6 address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def ip_of(host: str) -> IP | None:
    """Return the address that a host is, in any spelling that the resolver accepts (`127.1`, `0x7f000001`, `0`); None
    for a name. An IPv4 address in an IPv6 one is returned as such."""
    text = without_brackets(host).partition("%")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return _ip_of_numbers(text)
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _ip_of_numbers(text: str) -> ipaddress.IPv4Address | None:
    """Return the address of one to four numbers, decimal, octal or hexadecimal; the last fills the remaining bytes."""
    if _NUMBERS.match(text) is None:
        return None
    try:
        *first, last = (
            int(number, 16 if number[:2] in ("0x", "0X") else 8 if number[0] == "0" else 10)
            for number in text.split(".")
        )
        numbers = [*first, *last.to_bytes(4 - len(first), "big")]
        return ipaddress.IPv4Address(bytes(numbers))
    except (ValueError, OverflowError):
        return None


def is_host(text: str) -> bool:
    """Return whether a server could listen on this: an address or a name, or nothing for all addresses."""
    return text == "" or ((ip_of(text) is not None if ":" in text else True) and _HOST.fullmatch(text) is not None)


def host_and_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    host = without_brackets(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def http_url(host: str, port: int) -> str:
    """Return the URL of a server of this machine that listens on a host, with an address to connect to: a wildcard
    becomes the loopback address of its family. The `%` before an IPv6 zone is encoded, as in RFC 6874."""
    address = ip_of(host)
    if not host or (address is not None and address.is_unspecified):
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://{host_and_port(host.replace('%', '%25'), port)}"
