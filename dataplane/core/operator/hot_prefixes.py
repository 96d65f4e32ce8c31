"""List hot prefixes for operators, with how many of their blocks are cached now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataplane.core.engines.prefixes import HotPrefix, Measure, PrefixSketches
from dataplane.core.pool.pool import Pool
from dataplane.core.tenants.tenant import Tenant
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.prefixes import MAX_PREFIXES, Prefix
from dataplane.protocol.layout import COLD_TENANT, is_ready, pack_keys

MAX_LOOKED_UP = 8192
"""Maximum number of keys that a listing of prefixes looks up. Beyond it, residency is estimated from a sample of each
prefix."""


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
    prefix = prefixes.find(label, now, pool.spaces.by_number)
    keys = None if prefix is None else prefixes.keys(prefix)
    if prefix is None or keys is None:
        raise ProtocolError(Code.UNKNOWN_PREFIX, "no hot prefix has this label now", "label")
    (shown,) = _shown(pool, prefixes, [prefix])
    shown.keys = b"".join(keys)
    return shown


def _shown(pool: Pool, prefixes: PrefixSketches, listed: Sequence[HotPrefix]) -> list[Prefix]:
    share = MAX_LOOKED_UP // max(1, len(listed))
    looked_up = [_sample(prefixes.keys(hot) or (), share) for hot in listed]
    resident_counts = _count_resident(pool, list(zip(listed, looked_up, strict=True)))
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
            resident=round(hot.depth * resident / max(1, len(keys))),
            last_used=hot.last_used,
        )
        for hot, keys, resident in zip(listed, looked_up, resident_counts, strict=True)
    ]


def _sample(keys: Sequence[bytes], most: int) -> Sequence[bytes]:
    """Return all keys of a prefix, or `most` evenly spaced ones if it has more."""
    if len(keys) <= most:
        return keys
    return [keys[at * len(keys) // most] for at in range(most)]


def _count_resident(pool: Pool, chains: Sequence[tuple[HotPrefix, Sequence[bytes]]]) -> list[int]:
    """Return, for each prefix, how many keys are readable blocks of its tenant in its space.

    There is one look-up per space.
    """
    counts = [0] * len(chains)
    of_space: dict[int, list[int]] = {}
    for at, (hot, keys) in enumerate(chains):
        if keys and hot.space in pool.spaces.by_number:
            of_space.setdefault(hot.space, []).append(at)
    for space, positions in of_space.items():
        words = pack_keys([key for at in positions for key in chains[at][1]])
        lengths = [len(chains[at][1]) for at in positions]
        numbers, control = pool.table.memory.find(words, space)
        owners = pool.table.memory.cold.take(numbers, axis=0, mode="clip")[:, COLD_TENANT]
        tenants = np.array([_number(pool, chains[at][0].tenant) for at in positions], np.uint64)
        is_resident = (numbers >= 0) & is_ready(control) & (owners == np.repeat(tenants, lengths))
        begins = np.cumsum([0, *lengths[:-1]])
        for at, count in zip(positions, np.add.reduceat(is_resident, begins, dtype=np.int64).tolist(), strict=True):
            counts[at] = count
    return counts


def _number(pool: Pool, tenant: Tenant) -> int:
    """Return the tenant's current number, 0 if it is forgotten.

    A tenant that was forgotten and came back has a different number from the one in its hot prefixes.
    """
    current = pool.tenants.by_salt.get(tenant.salt)
    return 0 if current is None else current.number
