"""Blocks that other nodes wrote to shared tiers: asked for when an engine wants them, and remembered for a while.

Other nodes write to a shared tier, so its contents cannot be listed. A block that was found stays in the directory for
FOUND_S seconds after it was found or last used. A missing block is remembered for MISSING_S seconds.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from dataplane.protocol.tier_directory import TierDirectory, space_word

FOUND_S = 60.0
MISSING_S = 5.0
MAX_NAMES_PER_QUERY = 128
"""Blocks of one call."""
MAX_FOUND = 1 << 18
MAX_MISSING = 1 << 16
MAX_QUERIES = 1 << 16
OWN_QUESTIONS = 64
"""Number of questions of each engine that are always asked."""
EXPIRED_AT_ONCE = 1024


class BlockListings:
    """The tier directory, by the names of blocks."""

    def __init__(self, directory: TierDirectory) -> None:
        self._directory = directory

    def add(self, number: int, blocks: Iterable[StoredBlock]) -> None:
        """List blocks of the tier with this number."""
        by_space: dict[bytes, list[StoredBlock]] = {}
        for stored in blocks:
            by_space.setdefault(stored.name.space, []).append(stored)
        for space, of_space in by_space.items():
            words = pack_keys([stored.name.key for stored in of_space])
            sizes = np.array([stored.length for stored in of_space], np.uint64)
            self._directory.add(words, space_word(space.hex()), number, sizes)

    def remove(self, number: int, names: Iterable[BlockName]) -> None:
        """List blocks of the tier no longer."""
        by_space: dict[bytes, list[bytes]] = {}
        for name in names:
            by_space.setdefault(name.space, []).append(name.key)
        for space, keys in by_space.items():
            self._directory.remove(pack_keys(keys), space_word(space.hex()), number)

    def note_missing(self, name: BlockName, *, missing: bool) -> None:
        """Note whether all shared tiers answered that they lack a block."""
        self._directory.note_missing(name.key, space_word(name.space.hex()), missing=missing)


@dataclass(eq=False, slots=True)
class FoundBlock:
    """A block that another node wrote to a shared tier."""

    tier: TierState
    stored: StoredBlock
    until: float


class Existence:
    """Answers of shared tiers. A key is asked for once, however many engines want it."""

    def __init__(self, tiers: Sequence[TierState], listed: BlockListings) -> None:
        """`tiers` may change later."""
        self._tiers, self._listed = tiers, listed
        self._found_blocks: OrderedDict[BlockName, FoundBlock] = OrderedDict()
        self._missing: OrderedDict[BlockName, float] = OrderedDict()
        self._queried: dict[BlockName, int] = {}
        """Number of tiers that have not answered yet, by block."""
        self._askers: dict[BlockName, int] = {}
        """The engine that asked first, by block."""
        self._counts: dict[int, int] = {}
        """Number of blocks of each engine whose answers are pending."""
        self._waiting: dict[TierState, deque[BlockName]] = {}
        self._in_calls: dict[TierState, dict[BlockName, None]] = {}
        """Blocks that a tier was asked for and has not answered."""

    def query(self, names: Iterable[BlockName], client: int) -> None:
        """Ask the shared tiers in service for the blocks whose answers are not known.

        As with requests for loads, an engine may have as many questions under way as there are free places, or
        OWN_QUESTIONS. Further blocks are not asked for.
        """
        tiers = [tier for tier in self._tiers if tier.shared and tier.serves]
        if not tiers:
            return
        for name in names:
            if name in self._queried or name in self._found_blocks or name in self._missing:
                continue
            if self._counts.get(client, 0) >= max(OWN_QUESTIONS, MAX_QUERIES - len(self._queried)):
                return
            self._queried[name] = len(tiers)
            self._askers[name] = client
            self._counts[client] = self._counts.get(client, 0) + 1
            for tier in tiers:
                self._waiting.setdefault(tier, deque()).append(name)

    def is_queried(self, name: BlockName) -> bool:
        """Return whether an answer is still to come."""
        return name in self._queried

    def found(self, name: BlockName) -> FoundBlock | None:
        """Return a block that a shared tier in service was found to hold."""
        found_block = self._found_blocks.get(name)
        return found_block if found_block is not None and found_block.tier.serves else None

    def next_names(self, tier: TierState) -> list[BlockName]:
        """Return the next names to ask a tier for; an empty list if there are none."""
        waiting = self._waiting.get(tier)
        if not waiting:
            return []
        names = [waiting.popleft() for _ in range(min(MAX_NAMES_PER_QUERY, len(waiting)))]
        self._in_calls.setdefault(tier, {}).update(dict.fromkeys(names))
        return names

    def answered(
        self, tier: TierState, names: Sequence[BlockName], stored: Sequence[StoredBlock | None], now: float
    ) -> None:
        """Take the block that a tier holds under each name; None if it holds none, or did not answer. Names that were
        answered in its place meanwhile are skipped."""
        in_calls = self._in_calls.get(tier, {})
        for name, block in zip(names, stored, strict=True):
            if name not in in_calls:
                continue
            del in_calls[name]
            self._queried[name] -= 1
            found_block = self._found_blocks.get(name)
            if (
                block is not None
                and tier.serves
                and (found_block is None or tier.spec.order < found_block.tier.spec.order)
            ):
                if found_block is not None:
                    self.forget(name)
                entry = self._found_blocks[name] = FoundBlock(tier, block, now + FOUND_S)
                self._listed.add(tier.number, [entry.stored])
            if self._queried[name]:
                continue
            self._end_question(name)
            if name not in self._found_blocks:
                self._missing[name] = now + MISSING_S
                self._listed.note_missing(name, missing=True)
        while len(self._found_blocks) > MAX_FOUND:
            self.forget(next(iter(self._found_blocks)))
        while len(self._missing) > MAX_MISSING:
            self._listed.note_missing(self._missing.popitem(last=False)[0], missing=False)

    def _end_question(self, name: BlockName) -> None:
        del self._queried[name]
        client = self._askers.pop(name)
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]

    def used(self, name: BlockName, now: float) -> None:
        """Note that a block was loaded, which extends the time for which it is remembered."""
        found_block = self._found_blocks.get(name)
        if found_block is not None:
            found_block.until = now + FOUND_S
            self._found_blocks.move_to_end(name)

    def forget(self, name: BlockName) -> None:
        """Forget a block that was found."""
        found_block = self._found_blocks.pop(name, None)
        if found_block is not None and name not in found_block.tier.contents.entries:
            self._listed.remove(found_block.tier.number, [name])

    def stored(self, name: BlockName) -> None:
        """Note that this node wrote a block: it is no longer missing."""
        if self._missing.pop(name, None) is not None:
            self._listed.note_missing(name, missing=False)

    def step(self, now: float) -> None:
        """Forget answers that are too old, and answer in place of tiers that are not in service, whose calls may
        hang."""
        for _ in range(EXPIRED_AT_ONCE):
            oldest = next(iter(self._found_blocks.items()), None)
            if oldest is None or oldest[1].until > now:
                break
            self.forget(oldest[0])
        for _ in range(EXPIRED_AT_ONCE):
            first = next(iter(self._missing.items()), None)
            if first is None or first[1] > now:
                break
            self.stored(first[0])
        for tier in [tier for tier in (self._waiting | self._in_calls) if not tier.serves]:
            in_calls = self._in_calls.setdefault(tier, {})
            in_calls.update(dict.fromkeys(self._waiting.pop(tier, ())))
            names = list(in_calls)
            self.answered(tier, names, [None] * len(names), now)
            del self._in_calls[tier]

    def leave(self, tier: TierState) -> None:
        """Forget the blocks of a tier that is removed; the caller clears the directory."""
        for name in [name for name, found_block in self._found_blocks.items() if found_block.tier is tier]:
            del self._found_blocks[name]
