"""Tokens and sessions."""

from app.observe.catalogue.plane_event import PlaneEvent


class TokenCreated(PlaneEvent, tag="token.created"):
    """A token was created."""

    token: str


class TokenChanged(PlaneEvent, tag="token.changed"):
    """The name or the expiry of a token was changed."""

    token: str


class TokenRevoked(PlaneEvent, tag="token.revoked"):
    """A token was revoked."""

    severity = "warning"

    token: str


class TokenExpired(PlaneEvent, tag="token.expired"):
    """A token expired; requests with it are refused."""

    severity = "warning"

    token: str
    token_id: str
    """Id of the token."""


class JoinTokenCreated(PlaneEvent, tag="join_token.created"):
    """A join token was created."""

    join_token: str


class JoinTokenDeleted(PlaneEvent, tag="join_token.deleted"):
    """A join token was deleted."""

    join_token: str


class SessionOpened(PlaneEvent, tag="session.opened"):
    """A browser logged in with a token; the actor is the token."""


class SessionClosed(PlaneEvent, tag="session.closed"):
    """A browser logged out."""
