"""API tokens and browser sessions."""

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from app.schemas.base.fields import Moment, NewTenantName, RecordName, Rule, TtlS, at_most_one, bounds, given, implies
from app.schemas.base.listing import Page

RoleName = Literal["alerts", "viewer", "operator", "admin"]


class TokenPost(msgspec.Struct, forbid_unknown_fields=True):
    """A token to create."""

    name: RecordName
    """Name shown in lists and in the audit log: 1 to 128 characters of A-Z a-z 0-9 . _ -"""
    role: RoleName = "viewer"
    """`viewer` may read; `operator` may also change quotas, pins, policies, tiers and nodes; `admin` may also manage
    tokens and ceilings and read the audit log. `alerts` may only post alerts."""
    tenants: Annotated[list[NewTenantName], bounds(minItems=1), Meta(max_length=1000)] | None = None
    """Tenants, as shown, to which the token is limited (`_default` is the empty salt); null for all tenants."""
    ttl_s: TtlS | None = None
    """Time to live in seconds from now."""
    expires_at: Moment | None = None
    """Expiry: Unix seconds, or RFC 3339 with an offset; null for no expiry."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        at_most_one("ttl_s", "expires_at"),
        implies({"anyOf": [given("role", "admin"), given("role", "alerts")]}, {"not": given("tenants")}),
    )


class TokenPatch(msgspec.Struct, forbid_unknown_fields=True):
    """Fields of a token to change; omitted fields keep their values."""

    name: RecordName | msgspec.UnsetType = msgspec.UNSET
    ttl_s: TtlS | msgspec.UnsetType = msgspec.UNSET
    """Time to live in seconds from now."""
    expires_at: Moment | msgspec.UnsetType | None = msgspec.UNSET
    """Expiry: Unix seconds, or RFC 3339 with an offset; null for no expiry."""

    RULES: ClassVar[tuple[Rule, ...]] = ({"not": {"required": ["ttl_s", "expires_at"]}},)


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


class TokenList(Page, frozen=True):
    items: list[TokenAnswer]


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
    token: Annotated[str, Meta(max_length=512)]
    """A token, `larder_…`."""


class SessionAnswer(Whoami, frozen=True):
    csrf_token: str
    """Value of `X-CSRF-Token`, which every change with the session must send; empty without a session."""
    expires_at: float | None
    """End of the session, at the latest that of its token, in Unix seconds."""
