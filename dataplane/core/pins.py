"""Guaranteed pins: marks on blocks, present or yet to come, within a budget.

A pin names keys and a model and holds in every space of that model. A marked block is in no eviction order. The pool's
budget bounds the marked bytes, so pins can never make the pool unusable: what does not fit is kept like any other block
and reported as degraded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dataplane.protocol.events import PinStats

if TYPE_CHECKING:
    from dataplane.core.blocks import Block


@dataclass(eq=False, slots=True)
class Pin:
    """One pin record in force."""

    name: str
    model: str
    digest: str
    keys: tuple[bytes, ...]
    expires_at: float | None
    expired: bool = False
    resident: int = 0
    bytes: int = 0
    guaranteed: int = 0

    def stats(self, spaces: int) -> PinStats:
        return PinStats(
            name=self.name,
            resolved=len(self.keys) * max(1, spaces),
            resident=self.resident,
            bytes=self.bytes,
            guaranteed=self.guaranteed,
            expired=self.expired,
        )


@dataclass(slots=True)
class PinTable:
    """Pins by name, and their keys by model."""

    budget_bytes: int
    pinned_bytes: int = 0
    by_name: dict[str, Pin] = field(default_factory=dict)
    _by_key: dict[str, dict[bytes, dict[Pin, None]]] = field(default_factory=dict)
    _waiting: dict[Block, None] = field(default_factory=dict)
    """Resident blocks of live pins that the budget had no room for, first come first."""
    _degraded: set[Pin] = field(default_factory=set)
    """Pins with new blocks that wait, since `take_degraded`."""

    def add(self, pin: Pin) -> None:
        self.by_name[pin.name] = pin
        keys = self._by_key.setdefault(pin.model, {})
        for key in pin.keys:
            keys.setdefault(key, {})[pin] = None

    def remove(self, pin: Pin) -> None:
        """Forget the pin's keys; the caller re-marks its blocks."""
        if self.by_name.get(pin.name) is pin:
            del self.by_name[pin.name]
        self._drop_keys(pin)

    def expire(self, pin: Pin) -> None:
        """Its time is over: shown as expired, holding nothing."""
        pin.expired = True
        self._drop_keys(pin)

    def _drop_keys(self, pin: Pin) -> None:
        keys = self._by_key.get(pin.model, {})
        for key in pin.keys:
            held = keys.get(key, {})
            held.pop(pin, None)
            if not held:
                keys.pop(key, None)
        if not keys:
            self._by_key.pop(pin.model, None)

    def of(self, model: str, key: bytes) -> tuple[Pin, ...]:
        """Pins that want a key to stay in a space of `model`."""
        keys = self._by_key.get(model)
        return tuple(keys.get(key, ())) if keys else ()

    def mark(self, block: Block, pins: tuple[Pin, ...]) -> bool:
        """Account a READY block to its pins. True when it is inside the budget: take it out of the eviction orders."""
        block.pins = pins
        for pin in pins:
            pin.resident += 1
            pin.bytes += block.charge
        if self.pinned_bytes + block.charge > self.budget_bytes:
            self._waiting[block] = None
            self._degraded.update(pins)
            return False
        self._guarantee(block)
        return True

    def unmark(self, block: Block) -> bool:
        """Take a block out of its pins' account. True when it was inside the budget."""
        was = block.guaranteed
        for pin in block.pins:
            pin.resident -= 1
            pin.bytes -= block.charge
            pin.guaranteed -= was
        if was:
            self.pinned_bytes -= block.charge
            block.guaranteed = False
        self._waiting.pop(block, None)
        block.pins = ()
        return was

    def promote(self) -> list[Block]:
        """Blocks that waited for budget and have it now; take them out of the eviction orders."""
        promoted = []
        for block in list(self._waiting):
            if self.pinned_bytes + block.charge <= self.budget_bytes:
                del self._waiting[block]
                self._guarantee(block)
                promoted.append(block)
        return promoted

    def take_degraded(self) -> list[Pin]:
        """Pins that have more blocks beyond the budget since the last call."""
        degraded = [pin for pin in self._degraded if pin.resident > pin.guaranteed and not pin.expired]
        self._degraded.clear()
        return degraded

    def _guarantee(self, block: Block) -> None:
        block.guaranteed = True
        self.pinned_bytes += block.charge
        for pin in block.pins:
            pin.guaranteed += 1

    def due(self, now: float) -> Iterable[Pin]:
        """Live pins whose time is over."""
        return [
            pin
            for pin in self.by_name.values()
            if pin.expires_at is not None and pin.expires_at <= now and not pin.expired
        ]
