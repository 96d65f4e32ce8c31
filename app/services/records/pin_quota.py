"""Limits the pins that callers limited to tenants create for a tenant, so that no tenant fills the snapshot of all."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import Conflict
from app.services.base.principals import Principal
from app.services.base.snapshot_sizes import size_of
from app.store.records import snapshot_size
from app.store.records.snapshot_size import SnapshotSize
from dataplane.protocol.control.records import MAX_PINNED_KEYS
from dataplane.protocol.control.snapshots import MAX_SNAPSHOT_BYTES
from dataplane.protocol.salts import shown

MAX_KEYS = MAX_PINNED_KEYS // 4
"""Largest number of keys of all pins of a tenant."""
MAX_BYTES = MAX_SNAPSHOT_BYTES // 16
"""Largest size in a snapshot of all pins of a tenant."""


class PinQuota:
    """Limits the pins that callers limited to tenants may add."""

    def __init__(self, max_pins: int) -> None:
        self._max_pins = max_pins

    async def check(self, session: AsyncSession, by: Principal, salt: str, before: SnapshotSize | None) -> None:
        """Check after a pin was written; `before` is the size of the tenant's pins before. Raises Conflict."""
        if by.salts is not None and before is not None:
            await session.flush()
            self._check(salt, before, await snapshot_size.pins_of(session, salt))

    async def before(self, session: AsyncSession, by: Principal, salt: str) -> SnapshotSize | None:
        """Return the value that `check` needs; None for callers of all tenants."""
        return None if by.salts is None else await snapshot_size.pins_of(session, salt)

    def check_all(self, by: Principal, before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> None:
        """Check all pins, given their state before and after. Raises Conflict."""
        if by.salts is None:
            return
        old, new = _by_tenant(before, by), _by_tenant(after, by)
        for salt, weight in sorted(new.items()):
            self._check(salt, old.get(salt, SnapshotSize()), weight)

    def _check(self, salt: str, before: SnapshotSize, after: SnapshotSize) -> None:
        for was, would_be, limit, counted in (
            (before.records, after.records, self._max_pins, "pins (app.pins_per_tenant)"),
            (before.keys, after.keys, MAX_KEYS, "pinned keys, a quarter of the limit of nodes"),
            (before.bytes, after.bytes, MAX_BYTES, "bytes of pin names and models in a snapshot"),
        ):
            if would_be > max(was, limit):
                message = (
                    f"callers that are limited to tenants may create at most {limit:,} {counted} for the tenant "
                    f"{shown(salt)!r}; with this change it would have {would_be:,}"
                )
                raise Conflict.at("tenant", message)


def _by_tenant(pins: Iterable[Mapping[str, Any]], by: Principal) -> dict[str, SnapshotSize]:
    sizes: defaultdict[str, SnapshotSize] = defaultdict(SnapshotSize)
    for pin in pins:
        if by.sees(str(pin["tenant"])):
            sizes[pin["tenant"]] += size_of("pins", pin["name"], pin)
    return sizes
