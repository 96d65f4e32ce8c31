"""How many pins a tenant may have that callers limited to tenants make: nobody fills what nodes take for all."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import Conflict, FieldError
from app.services.callers import Caller
from app.services.snapshot_sizes import record_bytes
from app.store import weights
from app.store.weights import Weight
from dataplane.protocol.control import MAX_PINNED_KEYS, MAX_SNAPSHOT_BYTES
from dataplane.protocol.salts import shown

MOST_PINS = 10_000
MOST_KEYS = MAX_PINNED_KEYS // 4
"""Of all pins of a tenant."""
MOST_BYTES = MAX_SNAPSHOT_BYTES // 16
"""Of a snapshot, for all pins of a tenant."""


class PinShares:
    """Bounds what callers who are limited to tenants add."""

    def __init__(self, most_pins: int = MOST_PINS) -> None:
        self._most_pins = most_pins

    async def check(self, session: AsyncSession, by: Caller, salt: str, before: Weight | None) -> None:
        """After a pin was written; `before` is of the tenant's pins. Raises Conflict."""
        if by.salts is not None and before is not None:
            await session.flush()
            self._check(salt, before, await weights.pins_of(session, salt))

    async def before(self, session: AsyncSession, by: Caller, salt: str) -> Weight | None:
        """What `check` needs; None for callers of all tenants."""
        return None if by.salts is None else await weights.pins_of(session, salt)

    def check_all(
        self, by: Caller, before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]
    ) -> None:
        """Of all pins that there are, and would be. Raises Conflict."""
        if by.salts is None:
            return
        old, new = _by_tenant(before, by), _by_tenant(after, by)
        for salt, weight in sorted(new.items()):
            self._check(salt, old.get(salt, Weight(0, 0)), weight)

    def _check(self, salt: str, before: Weight, after: Weight) -> None:
        for was, would_be, most, what in (
            (before.records, after.records, self._most_pins, "pins (app.pins_per_tenant)"),
            (before.keys, after.keys, MOST_KEYS, "keys of pins, a quarter of what nodes take"),
            (before.bytes, after.bytes, MOST_BYTES, "bytes of names and models of pins in a snapshot"),
        ):
            if would_be > max(was, most):
                message = (
                    f"tokens that are limited to tenants may make at most {most:,} {what}, for the tenant "
                    f"{shown(salt)!r}; it would have {would_be:,}"
                )
                raise Conflict(f"tenant: {message}", [FieldError("tenant", message)])


def _by_tenant(pins: Iterable[Mapping[str, Any]], by: Caller) -> dict[str, Weight]:
    records, sizes, keys = Counter[str](), Counter[str](), Counter[str]()
    for pin in pins:
        salt = str(pin["tenant"])
        if by.sees(salt):
            records[salt] += 1
            sizes[salt] += record_bytes("pins", pin["name"], pin)
            keys[salt] += pin["key_count"]
    return {salt: Weight(records[salt], sizes[salt], keys[salt]) for salt in records}
