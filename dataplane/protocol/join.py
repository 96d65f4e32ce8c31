"""Protocol by which a node joins a fleet (ZeroMQ DEALER to ROUTER with CURVE, MessagePack).

The management plane is the CURVE server, and the join token holds its public key, so the node authenticates the
management plane before it sends anything. The node's own key is the CURVE client key: a peer cannot join with a key
that it does not own, so the messages hold no key. An enrolled node sends `Join` without a token when it starts and
periodically, because its addresses may have changed. From `Joined` on, it accepts control connections only from
`managers`.
"""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Literal

import msgspec

from dataplane.base.addresses import ip_of

JOINED_FILE = "joined.json"
"""File in the state directory with the answer that a data plane got when it joined a fleet."""
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
"""Hosts in a node's URL that stand for the address from which the management plane sees the node connect."""
_CHECK_BYTES = 4
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}\Z", re.ASCII)
_HOST = r"[0-9A-Za-z._%-]+|\*|\[[0-9A-Fa-f:.]+(?:%[0-9A-Za-z._-]+)?\]"
ADDRESS = rf"tcp://({_HOST}):[1-9][0-9]{{0,4}}|ipc:///[^\x00-\x1f\x7f-\x9f]*"
"""Pattern of an endpoint that nodes can reach."""
_TCP = re.compile(rf"tcp://(?P<host>{_HOST}):(?P<port>[0-9]{{1,5}})\Z", re.ASCII)

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
"""Refusals that are temporary."""


class Join(msgspec.Struct, tag_field="op", tag="join", forbid_unknown_fields=True):
    """Request of a node to join, or to update its addresses."""

    version: int
    node: str
    release: str
    labels: dict[str, str]
    control_url: str
    """URL for the management plane; a wildcard host stands for the address from which the node connects."""
    events_url: str
    token: str = ""
    """Id of the join token; "" from an enrolled node."""
    secret: bytes = b""


class Joined(msgspec.Struct, tag_field="op", tag="joined"):
    node: str
    managers: list[str]
    """Public keys (Z85) of the managers that may connect to the node."""
    control_url: str
    """URL with the host that the management plane uses."""
    events_url: str
    next_key: str = ""
    """Public key that will replace the join socket's current key; "" if no change is planned."""


class JoinRefused(msgspec.Struct, tag_field="op", tag="join_refused"):
    code: str
    """One of `JoinCode`."""
    message: str


JoinReply = Joined | JoinRefused


class BadToken(ValueError):
    """The text is not a join token; the message never repeats it."""


class JoinToken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Token that an admin gives to the operator of a data plane. One string holds everything needed to join."""

    id: str
    secret: bytes
    key: str
    """Public CURVE key (Z85) of the management plane."""
    addresses: list[str]
    """URLs of its join socket, tried in this order."""

    def __repr__(self) -> str:
        return f"JoinToken({self.id!r})"


_token_decoder = msgspec.msgpack.Decoder(JoinToken)


def token_text(token: JoinToken) -> str:
    """Return the printable form, with a checksum that detects truncated tokens."""
    body = msgspec.msgpack.encode(token)
    return TOKEN_PREFIX + urlsafe_b64encode(body + _check(body)).decode().rstrip("=")


def parse_token(text: str) -> JoinToken:
    """Parse the printable form. Raises BadToken."""
    text = text.strip()
    if not text.startswith(TOKEN_PREFIX) or len(text) > MAX_TOKEN_CHARACTERS:
        raise BadToken(f"expected a join token, which begins with {TOKEN_PREFIX!r}")
    encoded = text.removeprefix(TOKEN_PREFIX)
    try:
        data = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except (binascii.Error, ValueError):
        raise BadToken("the join token contains invalid characters; was it copied completely?") from None
    body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    if _check(body) != check:
        raise BadToken("the join token does not match its checksum; was it copied completely?")
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
    """Return whether the text is a CURVE key in Z85."""
    return _KEY.match(text) is not None


def url_fault(url: str, *, any_port: bool = False) -> str:
    """Return what is wrong with a ZeroMQ endpoint that peers should reach; "" if it is valid. With `any_port`, the port
    may be 0 or *, for one that the system chooses."""
    if len(url) > MAX_URL_CHARACTERS:
        return f"expected at most {MAX_URL_CHARACTERS} characters, got {len(url)}"
    if url.startswith("ipc:///") and url.isprintable():
        return ""
    match = _TCP.match(f"{url[:-1]}0" if any_port and url.endswith(":*") else url)
    if match is None or not (0 if any_port else 1) <= int(match["port"]) <= 65_535:
        return f"expected tcp://HOST:PORT, or ipc:// and an absolute path, got {url!r}"
    return ""


def host_of(url: str) -> str:
    """Return the host of a tcp endpoint with its brackets; "" for any other endpoint."""
    match = _TCP.match(url)
    return "" if match is None else match["host"]


def port_of(url: str) -> int:
    """Return the port of a tcp endpoint; 0 for any other endpoint."""
    match = _TCP.match(url)
    return 0 if match is None else int(match["port"])


def with_host(url: str, host: str) -> str:
    """Return the tcp endpoint with another host."""
    match = _TCP.match(url)
    return url if match is None else f"tcp://{host}:{match['port']}"


def is_loopback(url: str) -> bool:
    """Return whether only this machine can reach an endpoint, in any spelling that the resolver accepts."""
    if url.startswith("ipc://"):
        return True
    host = host_of(url).lower().rstrip(".")
    address = ip_of(host)
    if address is None:
        return host in ("localhost", "ip6-localhost", "ip6-loopback") or host.endswith(".localhost")
    return address.is_loopback
