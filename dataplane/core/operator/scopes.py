"""Resolve an operator's scope (tenant, model, space, keys) to numbers."""

from __future__ import annotations

from dataplane.core.pool.lineage import among
from dataplane.core.pool.pool import Pool
from dataplane.core.tenants.tenant import Tenant
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST
from dataplane.protocol.keys import KEY_BYTES, split_keys
from dataplane.protocol.layout import HOT_KEY, I64
from dataplane.protocol.salts import check_salt


def meant(pool: Pool, scope: Scope) -> I64:
    """Return the descriptors of the readable blocks of a scope, without descendants of its keys.

    A scope without fields means all blocks. Raise ProtocolError if the scope is invalid.
    """
    keys = keys_of(scope)
    tenant, spaces = named(pool, scope)
    numbers = pool.sweeps.select(tenant, spaces)
    if not keys:
        return numbers
    return numbers[among(pool.table.memory.hot[numbers, HOT_KEY : HOT_KEY + 4], keys)]


def selected(pool: Pool, scope: Scope) -> I64:
    """Return the descriptors of the readable blocks of a scope, with the blocks that were stored after its keys. Raise
    ProtocolError if the scope is invalid."""
    keys = keys_of(scope)
    tenant, spaces = named(pool, scope)
    return pool.sweeps.covered("demote", tenant, spaces, keys, ())


def check_narrow(scope: Scope) -> None:
    """Raise ProtocolError if a scope has no field, or an invalid one."""
    if scope == Scope():
        raise ProtocolError(Code.BAD_SCOPE, "expected a tenant, a model, a space or keys", "scope")
    keys_of(scope)


def keys_of(scope: Scope) -> list[bytes]:
    """Return the keys of a scope. Raise ProtocolError if its tenant or its keys are invalid."""
    if scope.tenant is not None:
        try:
            check_salt(scope.tenant)
        except ProtocolError as error:
            raise ProtocolError(error.code, error.message, "scope.tenant") from None
    count, remainder = divmod(len(scope.keys), KEY_BYTES)
    if remainder or count > MAX_KEYS_PER_REQUEST:
        raise ProtocolError(
            Code.BAD_KEYS,
            f"expected up to {MAX_KEYS_PER_REQUEST} keys of {KEY_BYTES} bytes, got {len(scope.keys)} bytes",
            "scope.keys",
        )
    return split_keys(scope.keys)


def named(pool: Pool, scope: Scope) -> tuple[Tenant | None, frozenset[int] | None]:
    """Return the tenant and the space numbers of a scope, None for all. An unknown tenant yields no spaces."""
    tenant = None if scope.tenant is None else pool.tenants.by_salt.get(scope.tenant)
    if scope.tenant is not None and tenant is None:
        return None, frozenset()
    return tenant, spaces_of(pool, scope.model, scope.space)


def spaces_of(pool: Pool, model: str | None, identity: str | None) -> frozenset[int] | None:
    """Return the numbers of the spaces with a model and an identity, or None for all spaces if both are None."""
    if model is None and identity is None:
        return None
    return frozenset(
        number
        for number, space in pool.spaces.by_number.items()
        if (model is None or space.model == model) and (identity is None or space.identity() == identity)
    )
