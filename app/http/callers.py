"""Who asks, of the request that is being served, and the guard that every route of the API stands behind.

A route says in `opt` what it takes: `role` (the least that may, or `anyone`; nothing said means admin) and `scoped`:
callers who are limited to tenants may use it, because its handler looks after what they see and change. All others
refuse them. `opened_by` names a setting that opens the route to everybody, `setup` lets the one-time setup token in.
"""

from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from typing import Any, TypeVar

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from app.errors import Forbidden, LarderError, StoreUnavailable, Unauthorized
from app.services.auth import EXPECTED, Attempt
from app.services.callers import Caller
from app.services.credentials import SETUP_ID

_current: ContextVar[Caller | LarderError | None] = ContextVar("caller", default=None)
_origin: ContextVar[Attempt] = ContextVar("origin")
_ending: ContextVar[ExitStack] = ContextVar("ending")
T = TypeVar("T")


def caller() -> Caller:
    """Raises Unauthorized, TooManyRequests, and what else kept the edge from knowing who it is."""
    known = _current.get()
    if known is None:
        raise Unauthorized(EXPECTED)
    if isinstance(known, LarderError):
        raise known
    return known


def is_stranger() -> bool:
    """Whether the request is from nobody we know, and was let in because its route answers everybody."""
    known = _current.get()
    return known is None or (isinstance(known, LarderError) and not isinstance(known, StoreUnavailable))


def origin() -> Attempt:
    """What the request shows of where it comes from, whoever sends it."""
    return _origin.get()


def serve_as(known: Caller | LarderError | None, attempt: Attempt, ending: ExitStack) -> None:
    """Says who asks, or why that is not known, for the rest of this request; `ending` is closed at its end."""
    _current.set(known)
    _origin.set(attempt)
    _ending.set(ending)


def until_answered(context: AbstractContextManager[T]) -> T:
    """Enter it until this request is answered to the last byte, or its client is gone."""
    return _ending.get().enter_context(context)


async def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Raises Unauthorized, Forbidden. Not for a thread, where the framework would run it if it were not a coroutine."""
    role = handler.opt.get("role", "admin")
    if role == "anyone" or handler.opt.get("opened_by") in connection.app.state.open_to_all:
        return
    asks = caller()
    if asks.token_id == SETUP_ID and not handler.opt.get("setup", False):
        raise Unauthorized("the setup token makes the first token and nothing else: 'larder login --setup'")
    if not asks.may(role):
        raise Forbidden(f"this needs the role {role!r}, and {asks.actor!r} has the role {asks.role!r}")
    if not handler.opt.get("scoped", False):
        asks.check_whole(connection.url.path)
