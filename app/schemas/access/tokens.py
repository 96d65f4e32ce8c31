"""API tokens and browser sessions."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

RoleName = Literal["viewer", "operator", "admin"]


class TokenPost(msgspec.Struct, forbid_unknown_fields=True):
    """A token to create."""

    name: Annotated[
        str, Meta(description="Names it in lists and in the audit: 1 to 128 of A-Z a-z 0-9 . _ -")
    ]
    role: Annotated[
        RoleName,
        Meta(
            description="`viewer` reads; `operator` changes quotas, pins, policies and nodes, too; `admin` does all, "
            "also tokens, ceilings and the audit."
        ),
    ] = "viewer"
    tenants: Annotated[
        Annotated[list[str], Meta(max_length=1000)] | None,
        Meta(
            description="Tenants as shown (`_default` for the empty salt) that it is limited to; null: all."
        ),
    ] = None
    ttl_s: Annotated[float | None, Meta(description="Ends this many seconds from now.")] = None
    expires_at: Annotated[
        float | str | None,
        Meta(description="Ends then: Unix seconds, or RFC 3339 with an offset; null: never."),
    ] = None


class TokenPatch(msgspec.Struct, forbid_unknown_fields=True):
    """What of a token may change; what is left out stays."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    ttl_s: Annotated[float | msgspec.UnsetType, Meta(description="Ends this many seconds from now.")] = (
        msgspec.UNSET
    )
    expires_at: Annotated[
        float | str | msgspec.UnsetType | None,
        Meta(description="Ends then: Unix seconds, or RFC 3339 with an offset; null: never."),
    ] = msgspec.UNSET


class TokenAnswer(msgspec.Struct, frozen=True):
    """A token without its secret."""

    id: str
    name: str
    role: RoleName
    tenants: list[str] | None
    """Tenants that the token is limited to, by display name; null for all."""
    created_by: str
    created_at: float
    expires_at: float | None
    expired: bool
    last_used_at: float | None
    """Unix seconds, to the minute; null if never used."""
    last_used_from: str


class TokenMade(TokenAnswer, frozen=True):
    """A new token with its secret, which no later answer shows."""

    token: str


class TokenList(msgspec.Struct, frozen=True):
    items: list[TokenAnswer]
    total: int
    next_cursor: str
    """`cursor` of the next page; empty on the last."""


class Whoami(msgspec.Struct, frozen=True):
    """Identity of the caller."""

    actor: str
    """Name of the token; `local` if no token is needed, `admin` for the token in the settings."""
    role: RoleName
    tenants: list[str] | None
    """Tenants that the token is limited to, by display name; null for all."""
    token_id: str
    session: bool
    """Whether the caller is a logged-in browser."""
    source: str
    """Address of the client."""


class SessionPost(msgspec.Struct, forbid_unknown_fields=True):
    token: Annotated[str, Meta(description="`larder_…`", max_length=512)]


class SessionAnswer(Whoami, frozen=True):
    csrf_token: str
    """Value of `X-CSRF-Token`, which every change with the session must send; empty without a session."""
    expires_at: float | None
    """End of the session in Unix seconds."""
