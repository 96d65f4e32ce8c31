"""The chains of pins that changed: their blocks in tiers are marked, and their blocks in memory are copied to tiers.

A pin may have as many keys as a node accepts, so the work is done in parts, oldest change first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from dataplane.core.pool.pins import Pin, PinBundle
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.spaces import Space
from dataplane.protocol.states import State
from dataplane.protocol.stored_blocks import BlockName

if TYPE_CHECKING:
    from dataplane.core.tiering.contents import TierEntry
    from dataplane.core.tiering.tier_state import TierState
    from dataplane.core.tiering.tiering import Tiering

MAX_STEP_KEYS = 1024
"""Look-ups of one step: keys, for each space of their model and each tier."""


class PinnedChains:
    """Chains of pins whose blocks must be looked up in tiers."""

    def __init__(self, tiering: Tiering) -> None:
        self._tiering = tiering
        self._pool = tiering.pool
        self._chains: dict[tuple[str, str, str], tuple[tuple[bytes, ...], int]] = {}
        """Keys and the position of the next one, by model, salt and digest."""
        self._models: dict[bytes, str] = {}
        """Models of spaces, by identity, including spaces that the pool has forgotten while tiers hold their blocks."""
        self._of_model: dict[str, list[bytes]] = {}
        self._attached: set[bytes] = set()
        """Spaces that an engine has attached since the process started."""
        self._newest_space = 0
        self.on_space: Callable[[bytes, Space], None] = lambda identity, space: None
        """Called with the identity of a space that an engine has attached, and the space."""

    def __len__(self) -> int:
        return len(self._chains)

    def changed(self, pins: Iterable[Pin]) -> None:
        """Look up the blocks of pins that were added, replaced, removed, or have expired."""
        for pin in pins:
            key = (pin.model, pin.tenant, pin.spec.keys_digest)
            self._chains.pop(key, None)
            self._chains[key] = (pin.keys, 0)

    def know(self, models: Mapping[bytes, str]) -> None:
        """Add spaces that engines attached before the process started: their models, by identity."""
        for space, model in models.items():
            self._add(space, model)

    def _add(self, space: bytes, model: str) -> None:
        if space not in self._models:
            self._models[space] = model
            self._of_model.setdefault(model, []).append(space)

    def mark(self, tier: TierState, entry: TierEntry, now: float) -> None:
        """Apply the pins of a block that was added to a tier, or whose pins have changed."""
        model = self._models.get(entry.stored.name.space)
        if model is None:
            return  # no engine has attached its space
        tier.contents.pins.mark(entry, self._bundles(model, entry.stored.tenant, entry.stored.name.key), now)

    def step(self, now: float) -> None:
        """Look up the next keys. Do nothing while too many blocks of pins wait to be copied."""
        self._learn_spaces()
        left = MAX_STEP_KEYS
        while self._chains and left > 0 and not self._tiering.spills.crowded:
            key = next(iter(self._chains))
            model, salt, _ = key
            keys, at = self._chains[key]
            spaces = self._of_model.get(model, [])
            each = max(1, len(spaces) * len(self._tiering.tiers))
            part = keys[at : at + max(1, left // each)]
            for space in spaces:
                self._mark_part(space, salt, part, now)
            self._spill_part(model, salt, part)
            left -= each * len(part)
            if at + len(part) < len(keys):
                self._chains[key] = (keys, at + len(part))
            else:
                del self._chains[key]

    def _mark_part(self, space: bytes, salt: str, keys: Iterable[bytes], now: float) -> None:
        for tier in self._tiering.tiers:
            entries = tier.contents.entries
            for key in keys:
                entry = entries.get(BlockName(space, key))
                if entry is not None and entry.stored.tenant == salt:
                    self.mark(tier, entry, now)

    def _spill_part(self, model: str, salt: str, keys: tuple[bytes, ...]) -> None:
        pool = self._pool
        for space in pool.spaces.of_model(model):
            found = pool.table.find(pack_keys(keys), space)
            self._tiering.spills.first(
                [
                    block
                    for block in found
                    if block is not None and block.tenant.salt == salt and block.state is State.READY
                ]
            )

    def _bundles(self, model: str, salt: str, key: bytes) -> tuple[PinBundle, ...]:
        return self._pool.pins.of(model, salt, key)

    def _learn_spaces(self) -> None:
        """Note the models of new spaces, and look up the blocks of their pins there."""
        new: set[str] = set()
        for number in reversed(self._pool.spaces.by_number):
            if number <= self._newest_space:
                break
            space = self._tiering.identity(number)
            if space is not None and space not in self._attached:
                self._attached.add(space)
                declared = self._pool.spaces.by_number[number]
                self._add(space, declared.model)
                self.on_space(space, declared)
                new.add(declared.model)
        self._newest_space = max(self._newest_space, next(reversed(self._pool.spaces.by_number), 0))
        if new:
            self.changed(pin for pin in self._pool.pins.by_name.values() if pin.model in new and not pin.expired)
