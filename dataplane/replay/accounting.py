"""Check of the accounting: after a replay, a data plane must hold exactly the blocks of its tenants."""

import time

import msgspec

from dataplane.protocol.stats.node import NodeStats
from dataplane.replay.control import ControlLink

SETTLE_S = 3.0
"""Seconds that the data plane may take to notice that the engines have ended."""
_AGAIN_S = 0.05


class Accounting(msgspec.Struct, frozen=True):
    """Bytes of the pool at the end of a run."""

    capacity_bytes: int
    used_bytes: int
    tenant_bytes: int
    """Sum over all tenants."""
    reserved_bytes: int
    quarantined_bytes: int
    pool_bytes_equal: bool
    """used = sum over tenants = sum over descriptors, and nothing is reserved or quarantined."""
    faults: list[str]
    """Findings of the data plane's own audit, which compares descriptors, index, tenants and order with each other."""


def of(stats: NodeStats, faults: list[str]) -> Accounting:
    """Return the accounting for one state of a node."""
    tenants = [*stats.tenants, *([stats.other_tenants] if stats.other_tenants else [])]
    tenant_bytes_held = sum(tenant.bytes for tenant in tenants)
    pool = stats.pool
    return Accounting(
        capacity_bytes=pool.capacity_bytes,
        used_bytes=pool.used_bytes,
        tenant_bytes=tenant_bytes_held,
        reserved_bytes=pool.reserved_bytes,
        quarantined_bytes=pool.quarantined_bytes,
        pool_bytes_equal=pool.used_bytes == tenant_bytes_held
        and not pool.reserved_bytes
        and not pool.quarantined_bytes
        and not faults,
        faults=faults,
    )


def settled(link: ControlLink, timeout_s: float = SETTLE_S) -> Accounting:
    """Return the accounting after the engines have ended. Repeat the request until it adds up, for at most `timeout_s`.

    Raises ControlError when the data plane does not answer.
    """
    end = time.monotonic() + timeout_s
    while True:
        described = link.describe(timeout_s)
        accounting = of(described.stats, described.faults)
        if accounting.pool_bytes_equal or time.monotonic() >= end:
            return accounting
        time.sleep(_AGAIN_S)
