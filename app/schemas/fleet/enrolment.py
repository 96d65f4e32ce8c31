"""Join tokens, with which new nodes enrol."""

from typing import Annotated

import msgspec
from msgspec import Meta

from app.schemas.base.fields import TEXT, Labels, TtlS, bounds, text
from dataplane.protocol.join import ADDRESS, MAX_NAME_CHARACTERS, MAX_URL_CHARACTERS

MAX_USES = 10_000


class JoinTokenPost(msgspec.Struct, forbid_unknown_fields=True):
    """A join token to create."""

    name: Annotated[str, text(TEXT, maxLength=MAX_NAME_CHARACTERS)] = ""
    """Free-form purpose of the token; at most 128 characters."""
    labels: Labels = {}
    """Labels for nodes that join with the token; they override the labels that the nodes report."""
    uses: Annotated[int, bounds(minimum=1, maximum=MAX_USES)] | None = 1
    """Number of nodes that may join with the token, 1 to 10,000; null for no limit."""
    ttl_s: TtlS | None = 86_400.0
    """Time to live in seconds; null for no expiry."""
    addresses: Annotated[list[Annotated[str, text(ADDRESS, maxLength=MAX_URL_CHARACTERS)]], Meta(max_length=8)] = []
    """Addresses at which nodes reach the join socket, such as `tcp://10.0.0.1:8471`. Defaults to `app.join_addresses`,
    or else to `app.join_url`."""


class JoinTokenAnswer(msgspec.Struct, frozen=True):
    """A token without its secret."""

    id: str
    name: str
    labels: dict[str, str]
    uses_left: int | None
    """Nodes that may still join with it; null for any number."""
    created_by: str
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    nodes: list[str]
    """Known nodes that joined with this token."""


class NewJoinToken(msgspec.Struct, frozen=True):
    """A new token with its secret, which no later answer shows."""

    token: str
    """The token, to be stored in the file that `larder dataplane --join-token-file` reads."""
    record: JoinTokenAnswer


class JoinTokenList(msgspec.Struct, frozen=True):
    items: list[JoinTokenAnswer]
    total: int
