"""What an operator points at, tenants, models, spaces and prefixes, turned into numbers; and prefixes to point at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dataplane.core.blocks import Block
from dataplane.core.engines import Reservation
from dataplane.core.lineage import among
from dataplane.core.pool import Pool
from dataplane.core.prefixes import HotPrefix, Measure, Prefixes
from dataplane.core.quotas import Tenant
from dataplane.core.sweeps import Begun, Kind
from dataplane.core.touching import touching
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control import MAX_PREFIXES, Prefix, Scope
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import COLD_TENANT, HOT_KEY, I64, is_ready, pack_keys
from dataplane.protocol.salts import check_salt

MAX_LOOKED_UP = 8192
"""Keys of all listed prefixes together that are looked up; beyond, what is resident is reckoned from some of each."""


def sweep(
    pool: Pool, kind: Kind, scope: Scope, open_reservations: Iterable[Reservation], now: float
) -> Begun:
    """Begin to invalidate or demote what a scope names. Raises ProtocolError."""
    if _whole(scope):
        raise ProtocolError(Code.BAD_SCOPE, "expected a tenant, a model, a space or keys", "scope")
    keys = _check(scope)
    tenant, spaces = _named(pool, scope)
    begun = pool.sweeps.start(kind, tenant, spaces, keys, pool.pins.permanent, now)
    if kind == "invalidate":
        _never_publish(pool, begun, tenant, spaces, keys, open_reservations)
    return begun


def clear(pool: Pool, open_reservations: Iterable[Reservation], now: float, *, permanent: bool) -> Begun:
    """Begin to invalidate everything, with `permanent` also what permanent pins want."""
    begun = pool.sweeps.start("invalidate", None, None, (), () if permanent else pool.pins.permanent, now)
    _never_publish(pool, begun, None, None, (), open_reservations)
    return begun


def count(pool: Pool, kind: Kind, scope: Scope, *, permanent: bool) -> tuple[int, int]:
    """Blocks and bytes that a sweep of a scope would be about; without any field of everything. Raises
    ProtocolError."""
    keys = _check(scope)
    tenant, spaces = _named(pool, scope)
    numbers = pool.sweeps.covered(kind, tenant, spaces, keys, () if permanent else pool.pins.permanent)
    return len(numbers), pool.sweeps.stored_bytes(numbers)


def clear_gateway(
    pool: Pool,
    gateway: str,
    spared: Iterable[Block],
    open_reservations: Iterable[Reservation],
    now: float,
) -> Begun:
    """Begin to invalidate all blocks of a gateway's spaces but spared ones and what permanent pins want. Open
    reservations that are given are not published."""
    spaces = frozenset(pool.spaces.of_gateway(gateway))
    begun = pool.sweeps.start("invalidate", None, spaces, (), (*spared, *pool.pins.permanent), now)
    _never_publish(pool, begun, None, spaces, (), open_reservations)
    return begun


def meant(pool: Pool, scope: Scope) -> I64:
    """Descriptors of the readable blocks of a scope, nothing behind its keys; without any field, of all of them.

    Raises ProtocolError.
    """
    keys = _check(scope)
    tenant, spaces = _named(pool, scope)
    numbers = pool.sweeps.select(tenant, spaces)
    if not keys:
        return numbers
    return numbers[among(pool.table.memory.hot[numbers, HOT_KEY : HOT_KEY + 4], keys)]


def _never_publish(
    pool: Pool,
    begun: Begun,
    tenant: Tenant | None,
    spaces: frozenset[int] | None,
    keys: Sequence[bytes],
    open_reservations: Iterable[Reservation],
) -> None:
    """What is being written of a scope is invalidated before it is there."""
    writing = [
        reservation
        for reservation in open_reservations
        if reservation.stamp < begun.before
        and (tenant is None or reservation.tenant is tenant)
        and (spaces is None or reservation.space in spaces)
    ]
    if keys and writing:
        behind = pool.table.memory.hot[begun.numbers, HOT_KEY : HOT_KEY + 4]
        writing = touching(writing, np.concatenate((pack_keys(list(keys)), behind)))
    for reservation in writing:
        reservation.invalid = True


def _whole(scope: Scope) -> bool:
    """Whether no field narrows a scope."""
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
    """The tenant and the numbers of the spaces that are meant, None for all; no spaces for an unknown tenant."""
    tenant = None if scope.tenant is None else pool.tenants.by_salt.get(scope.tenant)
    if scope.tenant is not None and tenant is None:
        return None, frozenset()
    return tenant, spaces_of(pool, scope.model, scope.space)


def spaces_of(pool: Pool, model: str | None, identity: str | None) -> frozenset[int] | None:
    """Numbers of the spaces of a model, or with an identity; None for all of them."""
    if model is None and identity is None:
        return None
    return frozenset(
        number
        for number, space in pool.spaces.by_number.items()
        if (model is None or space.model == model) and (identity is None or space.identity() == identity)
    )


def hot_prefixes(
    pool: Pool, prefixes: Prefixes, by: Measure, salt: str | None, limit: int, now: float
) -> list[Prefix]:
    """The heaviest prefixes, as the control protocol shows them. Raises ProtocolError."""
    if not 1 <= limit <= MAX_PREFIXES:
        raise ProtocolError(Code.BAD_FIELD, f"expected 1 to {MAX_PREFIXES}, got {limit}", "limit")
    tenant = None
    if salt is not None:
        tenant = pool.tenants.by_salt.get(salt)
        if tenant is None:
            return []
    return _shown(pool, prefixes, prefixes.top(by, tenant, limit, now))


def hot_prefix(pool: Pool, prefixes: Prefixes, label: str, now: float) -> Prefix:
    """One listed prefix with its keys. Raises ProtocolError(UNKNOWN_PREFIX)."""
    found = prefixes.find(label, now)
    keys = None if found is None else prefixes.keys(found)
    if found is None or keys is None:
        raise ProtocolError(Code.UNKNOWN_PREFIX, "no hot prefix has this label (any more)", "label")
    (shown,) = _shown(pool, prefixes, [found])
    shown.keys = b"".join(keys)
    return shown


def _shown(pool: Pool, prefixes: Prefixes, listed: Sequence[HotPrefix]) -> list[Prefix]:
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
    """All of a prefix, or as many of its keys from one end to the other."""
    if len(keys) <= most:
        return keys
    return [keys[at * len(keys) // most] for at in range(most)]


def _there(pool: Pool, chains: Sequence[tuple[HotPrefix, Sequence[bytes]]]) -> list[int]:
    """How many keys of each prefix are readable blocks of its tenant in its space; one look-up a space."""
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
        wanted = np.array([_number(pool, chains[at][0].tenant) for at in some], np.uint64)
        found = (numbers >= 0) & is_ready(control) & (owners == np.repeat(wanted, lengths))
        begins = np.cumsum([0, *lengths[:-1]])
        for at, count in zip(some, np.add.reduceat(found, begins, dtype=np.int64).tolist(), strict=True):
            there[at] = count
    return there


def _number(pool: Pool, tenant: Tenant) -> int:
    """The tenant's number now, 0 when it is forgotten: one that came again has another than its hot prefixes know."""
    known = pool.tenants.by_salt.get(tenant.salt)
    return 0 if known is None else known.number
