"""The principal of the current request, and the guard of every API route.

A route declares its access in `opt`:

- `role`: the lowest role that may use it, or `anyone`; admin if not set.
- `scoped`: callers that are limited to tenants may use it, because its handler filters what they see and change. Other
  routes refuse such callers.
- `also`: one more role that may use it.
- `opened_by`: a setting that opens the route to everyone.
- `setup`: the one-time setup token may use it.
"""

from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from typing import Any, TypeVar

from litestar.handlers import BaseRouteHandler

from app.errors import Forbidden, LarderError, StoreUnavailable, Unauthorized
from app.services.access.auth import EXPECTED, Credentials
from app.services.access.credentials import SETUP_ID
from app.services.base.principals import Principal

_current: ContextVar[Principal | LarderError | None] = ContextVar("caller", default=None)
_origin: ContextVar[Credentials] = ContextVar("origin")
_exit_stack: ContextVar[ExitStack] = ContextVar("exit_stack")
T = TypeVar("T")


def caller() -> Principal:
    """Return the principal of the current request. Raises Unauthorized, TooManyRequests, or any other error that
    prevented its identification."""
    identity = _current.get()
    if identity is None:
        raise Unauthorized(EXPECTED)
    if isinstance(identity, LarderError):
        raise identity
    return identity


def share() -> str:
    """Return the key under which limits per caller count this caller; the address for a client that is not logged
    in."""
    identity = _current.get()
    return identity.share if isinstance(identity, Principal) else f"address:{origin().source}"


def is_anonymous() -> bool:
    """Return whether the caller is not authenticated and was admitted because the route is public."""
    identity = _current.get()
    return identity is None or (isinstance(identity, LarderError) and not isinstance(identity, StoreUnavailable))


def origin() -> Credentials:
    """Return the credentials and the source of the request, also of an unauthenticated one."""
    return _origin.get()


def serve_as(identity: Principal | LarderError | None, attempt: Credentials, exit_stack: ExitStack) -> None:
    """Set the principal of the current request, or the error that prevented its identification. `exit_stack` is closed
    at the end of the request."""
    _current.set(identity)
    _origin.set(attempt)
    _exit_stack.set(exit_stack)


def until_answered(context: AbstractContextManager[T]) -> T:
    """Enter a context that exits when the request is answered completely or its client disconnects."""
    return _exit_stack.get().enter_context(context)


def guard(scope: Any, handler: BaseRouteHandler) -> None:
    """Raise Unauthorized or Forbidden if the caller may not use the route."""
    role = handler.opt.get("role", "admin")
    if role == "anyone" or handler.opt.get("opened_by") in scope["litestar_app"].state.open_to_all:
        return
    principal = caller()
    if principal.token_id == SETUP_ID and not handler.opt.get("setup", False):
        raise Unauthorized("the setup token can only create the first token: use 'larder login --setup'")
    if not principal.may(role) and principal.role != handler.opt.get("also"):
        raise Forbidden(f"this needs the role {role!r}, and {principal.actor!r} has the role {principal.role!r}")
    if not handler.opt.get("scoped", False):
        principal.check_whole(scope["path"])
