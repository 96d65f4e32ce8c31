"""Who asks, of the request that is being served, and the guard that every route of the API stands behind.

A route says in `opt` what it takes: `role` (the least that may; nothing said means admin) and `scoped`: callers who are
limited to tenants may use it, because its handler looks after what they see and change. All others are refused to them.
"""

from contextvars import ContextVar
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from app.errors import Forbidden, Unauthorized
from app.services.callers import Caller

_current: ContextVar[Caller | None] = ContextVar("caller", default=None)


def caller() -> Caller:
    """Raises Unauthorized when nobody is known."""
    known = _current.get()
    if known is None:
        raise Unauthorized("expected a token: 'Authorization: Bearer larder_…'")
    return known


def serve_as(known: Caller | None) -> None:
    """Says who asks, for the rest of this request."""
    _current.set(known)


def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Raises Unauthorized, Forbidden."""
    role = handler.opt.get("role", "admin")
    if role == "anyone":
        return
    asks = caller()
    if not asks.may(role):
        raise Forbidden(f"this needs the role {role!r}, and the token {asks.actor!r} is of a {asks.role}")
    if not handler.opt.get("scoped", False):
        asks.check_whole(connection.url.path)
