"""Who asks: a name, what the caller may do, and for which tenants. Made once a request, at the edge."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from app.errors import Forbidden
from dataplane.protocol.salts import shown

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""From the least to the most; each may do what those before it may."""

ADMIN = "admin"
"""The actor behind the token that the settings give."""
LOCAL = "local"
"""The actor of requests where none needs a token."""
RESERVED = frozenset({LOCAL, ADMIN, "larder", "setup"})
"""Actors that are no token: no token has such a name."""


@dataclass(frozen=True)
class Caller:
    """Who asks, and by which request."""

    request_id: str = ""
    actor: str = LOCAL
    """Name of the token; `local` where none is needed."""
    role: Role = "admin"
    salts: frozenset[str] | None = None
    """Tenants (by salt) that the caller is limited to; None: all."""
    token_id: str = ""
    source: str = ""
    """Address that the request came from."""
    trace_id: str = ""
    session: bool = False
    """A browser that logged in; its unsafe requests need the CSRF token."""
    session_hash: str = ""
    """Tells browsers apart that logged in with the same token."""

    @property
    def share(self) -> str:
        """By what callers are told apart where each has a share: the token, or the address where none is needed."""
        return self.token_id or (self.source if self.actor == LOCAL else self.actor)

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def sees(self, salt: str) -> bool:
        """Whether a tenant's records and numbers are the caller's to see."""
        return self.salts is None or salt in self.salts

    def sees_shown(self, tenant: str) -> bool:
        """The same by the name that people see."""
        return self.salts is None or tenant in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        """The tenants that the caller is limited to, as people see them."""
        return frozenset(shown(salt) for salt in self.salts or ())

    def check_salt(self, salt: str) -> None:
        """Raises Forbidden when the tenant is not the caller's. The same whether anything of it exists or not."""
        if not self.sees(salt):
            raise Forbidden(f"this token is limited to the tenants {self.tenants()}, not {shown(salt)!r}")

    def check_whole(self, what: str) -> None:
        """Raises Forbidden when the caller is limited to tenants: `what` is about all of them."""
        if self.salts is not None:
            raise Forbidden(
                f"this token is limited to the tenants {self.tenants()}, and {what} is about all of them"
            )

    def tenants(self) -> str:
        return ", ".join(sorted(repr(shown(salt)) for salt in self.salts or ()))


PLANE = Caller(actor="larder")
"""The management plane itself."""
