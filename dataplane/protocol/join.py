"""How a node becomes known to a management plane (ZeroMQ DEALER to ROUTER with CURVE, MessagePack).

The management plane is the CURVE server, and its public key stands in the join token: the node knows whom it talks to
before it says anything. The node's own key is the CURVE client's: nobody can join with a key that is not theirs, so the
messages hold no key. A node that was let in once says `Join` without a token whenever it starts and now and then: where
it can be reached may have changed. From `Joined` on, it accepts control connections of `managers` and nobody else.
"""

import binascii
import ipaddress
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Literal

import msgspec

JOINED_FILE = "joined.json"
"""Of a state directory: what a data plane learned when it joined a fleet."""
VERSION = 1
MAX_JOIN_BYTES = 32 * 1024
MAX_NAME_CHARACTERS = 128
MAX_URL_CHARACTERS = 512
MAX_ADDRESSES = 8
MAX_MANAGERS = 16
SECRET_BYTES = 32
TOKEN_PREFIX = "larder-join-1."
MAX_TOKEN_CHARACTERS = 8192
WILDCARD_HOSTS = ("0.0.0.0", "[::]", "*")
"""In a node's URL: the address that the management plane sees the node come from."""
_CHECK_BYTES = 4
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}\Z", re.ASCII)
_TCP = re.compile(
    r"tcp://(?P<host>[0-9A-Za-z._%-]+|\*|\[[0-9A-Fa-f:.]+(?:%[0-9A-Za-z._-]+)?\]):(?P<port>[0-9]{1,5})\Z",
    re.ASCII,
)
_NUMBERS = re.compile(r"(?:0x[0-9a-f]+|[0-9]+)(?:\.(?:0x[0-9a-f]+|[0-9]+))*\Z", re.ASCII)

JoinCode = Literal[
    "malformed",
    "version_mismatch",
    "bad_field",
    "bad_token",
    "token_expired",
    "token_used_up",
    "name_taken",
    "unknown_node",
    "rate_limited",
    "unavailable",
]
PASSING: tuple[JoinCode, ...] = ("rate_limited", "unavailable")
"""Refusals that may be otherwise in a moment."""


class Join(msgspec.Struct, tag_field="op", tag="join", forbid_unknown_fields=True):
    """A node wants in, or says where it is now."""

    version: int
    node: str
    release: str
    labels: dict[str, str]
    control_url: str
    """As the management plane reaches it; a wildcard host is the address that the node comes from."""
    events_url: str
    token: str = ""
    """The join token's id; "" from a node that was let in before."""
    secret: bytes = b""


class Joined(msgspec.Struct, tag_field="op", tag="joined"):
    node: str
    managers: list[str]
    """Public keys (Z85) of the management planes that may talk to the node."""
    control_url: str
    """As the management plane understood it."""
    events_url: str
    next_key: str = ""
    """Public key that the join socket will have some day in place of the present one; "" when no change is planned."""


class JoinRefused(msgspec.Struct, tag_field="op", tag="join_refused"):
    code: str
    """One of `JoinCode`."""
    message: str


JoinReply = Joined | JoinRefused


class BadToken(ValueError):
    """What was given is no join token; the sentence never repeats it."""


class JoinToken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What an admin hands to whoever starts a data plane. One string holds all that is needed to join."""

    id: str
    secret: bytes
    key: str
    """Public CURVE key (Z85) of the management plane."""
    addresses: list[str]
    """Where its join socket can be reached; tried in this order."""

    def __repr__(self) -> str:
        return f"JoinToken({self.id!r})"


_token_decoder = msgspec.msgpack.Decoder(JoinToken)


def token_text(token: JoinToken) -> str:
    """The printable form, with a checksum: a token that was cut while it was copied is told from a wrong one."""
    body = msgspec.msgpack.encode(token)
    return TOKEN_PREFIX + urlsafe_b64encode(body + _check(body)).decode().rstrip("=")


def parse_token(text: str) -> JoinToken:
    """Raises BadToken."""
    text = text.strip()
    if not text.startswith(TOKEN_PREFIX) or len(text) > MAX_TOKEN_CHARACTERS:
        raise BadToken(f"expected a join token, which begins with {TOKEN_PREFIX!r}")
    encoded = text.removeprefix(TOKEN_PREFIX)
    try:
        data = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except (binascii.Error, ValueError):
        raise BadToken("the join token has characters that no token has; was it copied whole?") from None
    body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    if _check(body) != check:
        raise BadToken("the join token does not match its checksum; was it copied whole?")
    try:
        token = _token_decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise BadToken("the join token is of another version of Larder") from None
    if len(token.secret) != SECRET_BYTES or not is_key(token.key):
        raise BadToken("the join token holds no secret or no key of a management plane")
    if not 1 <= len(token.addresses) <= MAX_ADDRESSES or any(
        url_fault(address) or host_of(address) in WILDCARD_HOSTS for address in token.addresses
    ):
        raise BadToken("the join token holds no address of a management plane")
    return token


def _check(body: bytes) -> bytes:
    return sha256(body).digest()[:_CHECK_BYTES]


def is_key(text: str) -> bool:
    """Whether this is a CURVE key in Z85."""
    return _KEY.match(text) is not None


def url_fault(url: str) -> str:
    """What is wrong with a ZeroMQ endpoint that others should reach; "" when nothing is."""
    if len(url) > MAX_URL_CHARACTERS:
        return f"expected at most {MAX_URL_CHARACTERS} characters, got {len(url)}"
    if url.startswith("ipc:///") and url.isprintable():
        return ""
    match = _TCP.match(url)
    if match is None or not 1 <= int(match["port"]) <= 65_535:
        return f"expected tcp://HOST:PORT, or ipc:// and an absolute path, got {url!r}"
    return ""


def host_of(url: str) -> str:
    """The host of a tcp endpoint, brackets included; "" for any other."""
    match = _TCP.match(url)
    return "" if match is None else match["host"]


def with_host(url: str, host: str) -> str:
    """The same tcp endpoint at another host."""
    match = _TCP.match(url)
    return url if match is None else f"tcp://{host}:{match['port']}"


def is_loopback(url: str) -> bool:
    """Whether only this machine can reach an endpoint, in any of the spellings that the resolver knows."""
    if url.startswith("ipc://"):
        return True
    host = host_of(url).strip("[]").partition("%")[0].lower().rstrip(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if _NUMBERS.match(host):  # "127.1", "0x7f000001", "2130706433": whatever it is, it is no name
            return True
        return host in ("localhost", "ip6-localhost", "ip6-loopback") or host.endswith(".localhost")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback
