"""Principals: authenticated callers with a name, a role and tenants. Created once per request, at the HTTP layer."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from app.errors import Forbidden
from dataplane.protocol.salts import shown

Role = Literal["alerts", "viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""From the least to the most powerful; each includes the rights of those before it. `alerts` may only post alerts,
which a viewer may not."""

ADMIN = "admin"
"""Actor of the token from the settings."""
LOCAL = "local"
"""Actor of requests that need no token."""
RESERVED = frozenset({LOCAL, ADMIN, "larder", "setup"})
"""Names that a token must not have."""


@dataclass(frozen=True)
class Principal:
    """An authenticated caller, and the request that it makes."""

    request_id: str = ""
    actor: str = LOCAL
    """Name of the token; `local` where none is needed."""
    role: Role = "admin"
    salts: frozenset[str] | None = None
    """Tenants (salts) that the caller is limited to; None: all."""
    token_id: str = ""
    source: str = ""
    """Address that the request came from."""
    trace_id: str = ""
    session_hash: str = ""
    """Distinguishes browsers that logged in with the same token; empty for other callers."""

    @property
    def session(self) -> bool:
        """Whether the caller is a logged-in browser; its unsafe requests need the CSRF token."""
        return bool(self.session_hash)

    @property
    def share(self) -> str:
        """Key of the caller for fair sharing: the token, or the address where no token is needed."""
        return self.token_id or (self.source if self.actor == LOCAL else self.actor)

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def sees(self, salt: str) -> bool:
        """Return whether the caller may see the records and numbers of a tenant."""
        return self.salts is None or salt in self.salts

    def sees_shown(self, tenant: str) -> bool:
        """Return the same as `sees`, for a tenant's shown name."""
        return self.salts is None or tenant in self._tenant_names

    @cached_property
    def _tenant_names(self) -> frozenset[str]:
        """Shown names of the tenants that the caller is limited to."""
        return frozenset(shown(salt) for salt in self.salts or ())

    def check_salt(self, salt: str) -> None:
        """Raise Forbidden if the caller may not see the tenant. The error is the same whether or not the tenant has
        records."""
        if not self.sees(salt):
            raise Forbidden(f"this token is limited to the tenants {self.tenants()}, not {shown(salt)!r}")

    def own_salt(self, named: str | None) -> str | None:
        """Return the tenant that a request is about: the one that it names, or the only one that the caller is limited
        to; None for all. Raise Forbidden if the caller may not see it, or is limited to several and names none."""
        if named is not None:
            self.check_salt(named)
        elif self.salts is not None:
            if len(self.salts) != 1:
                raise Forbidden(f"this token is limited to the tenants {self.tenants()}: say which with 'tenant'")
            (named,) = self.salts
        return named

    def check_whole(self, subject: str) -> None:
        """Raise Forbidden if the caller is limited to tenants; `subject` concerns all tenants."""
        if self.salts is not None:
            raise Forbidden(
                f"this token is limited to the tenants {self.tenants()}, and {subject} is about all of them"
            )

    def tenants(self) -> str:
        return ", ".join(sorted(repr(shown(salt)) for salt in self.salts or ()))


PLANE = Principal(actor="larder")
"""The management plane itself."""
