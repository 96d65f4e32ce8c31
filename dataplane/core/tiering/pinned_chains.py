"""Proposes blocks of pins to tiers: new ones, and those of pins that changed, whose blocks in tiers are marked.

A pin may have as many keys as a node accepts, so the work is done in parts, oldest change first.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from dataplane.core.blocks.blocks import Block
from dataplane.core.pool.pins import Pin
from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.copies import Copies
from dataplane.core.tiering.jobs import JobReason
from dataplane.core.tiering.tier_state import TAKES_NOTHING
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.states import State
from dataplane.protocol.stored_blocks import BlockName

MAX_STEP_KEYS = 1024
"""Look-ups of one step: keys, for each space of their model and each tier."""


class PinnedChains:
    """Chains of pins whose blocks must be looked up in tiers."""

    def __init__(self, catalog: Catalog, copies: Copies) -> None:
        self._catalog, self._copies, self._pool = catalog, copies, catalog.pool
        self._chains: dict[tuple[str, str, str], tuple[tuple[bytes, ...], int]] = {}
        """Keys and the position of the next one, by model, salt and digest."""
        self._newest_space = 0
        """Highest number of a space whose model was noted."""

    def __len__(self) -> int:
        return len(self._chains)

    def changed(self, pins: Iterable[Pin]) -> None:
        """Look up the blocks of pins that were added, replaced, removed, or have expired."""
        for pin in pins:
            key = (pin.model, pin.tenant, pin.spec.keys_digest)
            self._chains.pop(key, None)
            self._chains[key] = (pin.keys, 0)

    def stored(self, blocks: Sequence[Block]) -> None:
        """Propose those of the blocks that a guaranteed or a permanent pin holds, to every tier that takes blocks at
        all. They are copied before all others."""
        marked = self._pool.pins.marked
        ready = [block for block in blocks if any(bundle.strength != "soft" for bundle in marked.get(block, ()))]
        if not ready:
            return
        for tier in self._catalog.tiers:
            if tier.spec.spill in TAKES_NOTHING:
                continue
            if tier.serves:
                self._copies.propose(tier, JobReason.PIN, ready)
            else:
                tier.missed_pins = True
        self._catalog.wake()

    def all_changed(self, models: Container[str] | None = None) -> None:
        """Look up the blocks of all pins, or of those of some models."""
        pins = self._pool.pins.by_name.values()
        self.changed(pin for pin in pins if not pin.expired and (models is None or pin.model in models))

    def step(self, now: float) -> None:
        """Look up the next keys. Do nothing while too many blocks of pins wait to be copied."""
        self._learn_spaces()
        for tier in self._catalog.tiers:
            if tier.serves and tier.missed_pins:
                tier.missed_pins = False
                self.all_changed()
        left_keys = MAX_STEP_KEYS
        while self._chains and left_keys > 0 and not self._copies.crowded:
            key = next(iter(self._chains))
            model, salt, _ = key
            keys, at = self._chains[key]
            spaces = self._catalog.spaces_of_model.get(model, [])
            cost = max(1, len(spaces) * len(self._catalog.tiers))
            part = keys[at : at + max(1, left_keys // cost)]
            for space in spaces:
                self._mark_part(space, salt, part, now)
            self._spill_part(model, salt, part)
            left_keys -= cost * len(part)
            if at + len(part) < len(keys):
                self._chains[key] = (keys, at + len(part))
            else:
                del self._chains[key]

    def _mark_part(self, space: bytes, salt: str, keys: Iterable[bytes], now: float) -> None:
        for tier in self._catalog.tiers:
            entries = tier.contents.entries
            for key in keys:
                entry = entries.get(BlockName(space, key))
                if entry is not None and entry.stored.tenant == salt:
                    self._catalog.mark(tier, entry, now)

    def _spill_part(self, model: str, salt: str, keys: tuple[bytes, ...]) -> None:
        pool = self._pool
        for space in pool.spaces.of_model(model):
            blocks = pool.table.find(pack_keys(keys), space)
            self.stored(
                [
                    block
                    for block in blocks
                    if block is not None and block.tenant.salt == salt and block.state is State.READY
                ]
            )

    def _learn_spaces(self) -> None:
        """Note the models of new spaces, and look up the blocks of their pins there."""
        new: set[str] = set()
        for number in reversed(self._pool.spaces.by_number):
            if number <= self._newest_space:
                break
            declared = self._pool.spaces.by_number[number]
            self._catalog.know_space(self._pool.spaces.identities[number], declared)
            new.add(declared.model)
        self._newest_space = max(self._newest_space, next(reversed(self._pool.spaces.by_number), 0))
        if new:
            self.all_changed(new)
