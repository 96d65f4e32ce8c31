"""Resolve an operator's scope (tenant, model, space, keys) to numbers, and list hot prefixes to choose from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dataplane.core.blocks.blocks import Block
from dataplane.core.engines.engines import OpenReservation
from dataplane.core.engines.prefixes import HotPrefix, Measure, PrefixSketches
from dataplane.core.engines.touching import touching
from dataplane.core.pool.lineage import among
from dataplane.core.pool.pool import Pool
from dataplane.core.pool.sweeps import Kind, SweepStart
from dataplane.core.tenants.tenant import Tenant
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.prefixes import MAX_PREFIXES, Prefix
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import COLD_TENANT, HOT_KEY, I64, is_ready, pack_keys
from dataplane.protocol.salts import check_salt

MAX_LOOKED_UP = 8192
"""Maximum number of keys that a listing of prefixes looks up. Beyond it, residency is estimated from a sample of each
prefix."""


def sweep(pool: Pool, kind: Kind, scope: Scope, open_reservations: Iterable[OpenReservation], now: float) -> SweepStart:
    """Start to invalidate or demote the blocks of a scope. Raise ProtocolError on failure."""
    if _whole(scope):
        raise ProtocolError(Code.BAD_SCOPE, "expected a tenant, a model, a space or keys", "scope")
    keys = _check(scope)
    tenant, spaces = _named(pool, scope)
    begun = pool.sweeps.start(kind, tenant, spaces, keys, pool.pins.permanent, now)
    if kind == "invalidate":
        _never_publish(pool, begun, tenant, spaces, keys, open_reservations)
    return begun


def clear(pool: Pool, open_reservations: Iterable[OpenReservation], now: float, *, permanent: bool) -> SweepStart:
    """Start to invalidate everything; blocks of permanent pins only if `permanent` is set."""
    begun = pool.sweeps.start("invalidate", None, None, (), () if permanent else pool.pins.permanent, now)
    _never_publish(pool, begun, None, None, (), open_reservations)
    return begun


def count(pool: Pool, kind: Kind, scope: Scope, *, permanent: bool) -> tuple[int, int]:
    """Return the blocks and bytes that a sweep of a scope would cover. A scope without fields covers everything.

    Raise ProtocolError if the scope is invalid.
    """
    keys = _check(scope)
    tenant, spaces = _named(pool, scope)
    numbers = pool.sweeps.covered(kind, tenant, spaces, keys, () if permanent else pool.pins.permanent)
    return len(numbers), pool.sweeps.stored_bytes(numbers)


def clear_gateway(
    pool: Pool, gateway: str, excluded: Iterable[Block], open_reservations: Iterable[OpenReservation], now: float
) -> SweepStart:
    """Start to invalidate all blocks in a gateway's spaces except `excluded` blocks and blocks of permanent pins.

    The given open reservations in these spaces are not published.
    """
    spaces = frozenset(pool.spaces.of_gateway(gateway))
    begun = pool.sweeps.start("invalidate", None, spaces, (), (*excluded, *pool.pins.permanent), now)
    _never_publish(pool, begun, None, spaces, (), open_reservations)
    return begun


def meant(pool: Pool, scope: Scope) -> I64:
    """Return the descriptors of the readable blocks of a scope, without descendants of its keys.

    A scope without fields means all blocks. Raise ProtocolError if the scope is invalid.
    """
    keys = _check(scope)
    tenant, spaces = _named(pool, scope)
    numbers = pool.sweeps.select(tenant, spaces)
    if not keys:
        return numbers
    return numbers[among(pool.table.memory.hot[numbers, HOT_KEY : HOT_KEY + 4], keys)]


def selected(pool: Pool, scope: Scope) -> I64:
    """Return the descriptors of the readable blocks of a scope, with the blocks that were stored after its keys. Raise
    ProtocolError if the scope is invalid."""
    keys = _check(scope)
    tenant, spaces = _named(pool, scope)
    return pool.sweeps.covered("demote", tenant, spaces, keys, ())


def check_narrow(scope: Scope) -> None:
    """Raise ProtocolError if a scope has no field, or an invalid one."""
    if _whole(scope):
        raise ProtocolError(Code.BAD_SCOPE, "expected a tenant, a model, a space or keys", "scope")
    _check(scope)


def _never_publish(
    pool: Pool,
    begun: SweepStart,
    tenant: Tenant | None,
    spaces: frozenset[int] | None,
    keys: Sequence[bytes],
    open_reservations: Iterable[OpenReservation],
) -> None:
    """Mark open reservations in the scope of a sweep as invalid, so that their blocks are not published."""
    writing = [
        reservation
        for reservation in open_reservations
        if reservation.timestamp < begun.before
        and (tenant is None or reservation.tenant is tenant)
        and (spaces is None or reservation.space in spaces)
    ]
    if keys and writing:
        behind = pool.table.memory.hot[begun.numbers, HOT_KEY : HOT_KEY + 4]
        writing = touching(writing, np.concatenate((pack_keys(list(keys)), behind)))
    for reservation in writing:
        reservation.invalid = True


def _whole(scope: Scope) -> bool:
    """Return whether no field narrows a scope."""
    return scope.tenant is None and scope.model is None and scope.space is None and not scope.keys


def _check(scope: Scope) -> list[bytes]:
    if scope.tenant is not None:
        try:
            check_salt(scope.tenant)
        except ProtocolError as error:
            raise ProtocolError(error.code, error.message, "scope.tenant") from None
    count, rest = divmod(len(scope.keys), KEY_BYTES)
    if rest or count > MAX_KEYS_PER_REQUEST:
        raise ProtocolError(
            Code.BAD_KEYS,
            f"expected up to {MAX_KEYS_PER_REQUEST} keys of {KEY_BYTES} bytes, got {len(scope.keys)} bytes",
            "scope.keys",
        )
    return [scope.keys[at : at + KEY_BYTES] for at in range(0, len(scope.keys), KEY_BYTES)]


def _named(pool: Pool, scope: Scope) -> tuple[Tenant | None, frozenset[int] | None]:
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


def hot_prefixes(
    pool: Pool, prefixes: PrefixSketches, by: Measure, salt: str | None, limit: int, now: float
) -> list[Prefix]:
    """Return the heaviest prefixes in the form of the control protocol. Raise ProtocolError on failure."""
    if not 1 <= limit <= MAX_PREFIXES:
        raise ProtocolError(Code.BAD_FIELD, f"expected 1 to {MAX_PREFIXES}, got {limit}", "limit")
    tenant = None
    if salt is not None:
        tenant = pool.tenants.by_salt.get(salt)
        if tenant is None:
            return []
    return _shown(pool, prefixes, prefixes.top(by, tenant, limit, now))


def hot_prefix(pool: Pool, prefixes: PrefixSketches, label: str, now: float) -> Prefix:
    """Return one listed prefix with its keys. Raise ProtocolError(UNKNOWN_PREFIX) if it is not known."""
    found = prefixes.find(label, now)
    keys = None if found is None else prefixes.keys(found)
    if found is None or keys is None:
        raise ProtocolError(Code.UNKNOWN_PREFIX, "no hot prefix has this label now", "label")
    (shown,) = _shown(pool, prefixes, [found])
    shown.keys = b"".join(keys)
    return shown


def _shown(pool: Pool, prefixes: PrefixSketches, listed: Sequence[HotPrefix]) -> list[Prefix]:
    share = MAX_LOOKED_UP // max(1, len(listed))
    looked_up = [_some(prefixes.keys(hot) or (), share) for hot in listed]
    there = _there(pool, list(zip(listed, looked_up, strict=True)))
    models = pool.spaces.models()
    return [
        Prefix(
            label=hot.label,
            tenant=hot.tenant.salt,
            model=models.get(hot.space, ""),
            depth=hot.depth,
            hits=hot.hits,
            bytes_served=hot.bytes,
            error=hot.error,
            resident=round(hot.depth * found / max(1, len(keys))),
            last_used=hot.last_used,
        )
        for hot, keys, found in zip(listed, looked_up, there, strict=True)
    ]


def _some(keys: Sequence[bytes], most: int) -> Sequence[bytes]:
    """Return all keys of a prefix, or `most` evenly spaced ones if it has more."""
    if len(keys) <= most:
        return keys
    return [keys[at * len(keys) // most] for at in range(most)]


def _there(pool: Pool, chains: Sequence[tuple[HotPrefix, Sequence[bytes]]]) -> list[int]:
    """Return, for each prefix, how many keys are readable blocks of its tenant in its space.

    There is one look-up per space.
    """
    there = [0] * len(chains)
    of_space: dict[int, list[int]] = {}
    for at, (hot, keys) in enumerate(chains):
        if keys and hot.space in pool.spaces.by_number:
            of_space.setdefault(hot.space, []).append(at)
    for space, some in of_space.items():
        words = pack_keys([key for at in some for key in chains[at][1]])
        lengths = [len(chains[at][1]) for at in some]
        numbers, control = pool.table.memory.find(words, space)
        owners = pool.table.memory.cold.take(numbers, axis=0, mode="clip")[:, COLD_TENANT]
        tenants = np.array([_number(pool, chains[at][0].tenant) for at in some], np.uint64)
        found = (numbers >= 0) & is_ready(control) & (owners == np.repeat(tenants, lengths))
        begins = np.cumsum([0, *lengths[:-1]])
        for at, count in zip(some, np.add.reduceat(found, begins, dtype=np.int64).tolist(), strict=True):
            there[at] = count
    return there


def _number(pool: Pool, tenant: Tenant) -> int:
    """Return the tenant's current number, 0 if it is forgotten.

    A tenant that was forgotten and came back has a different number from the one in its hot prefixes.
    """
    known = pool.tenants.by_salt.get(tenant.salt)
    return 0 if known is None else known.number
