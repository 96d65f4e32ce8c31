"""Hot prefixes: which starts of prompts are served most, over the last hour, in bounded memory.

Every acquired chain credits the block it ended at and the blocks at which chains part (those with several children):
there shared prompts end; of a chain with very many of them, those near its two ends. Counts live in space-saving
sketches, one a tenant, a measure and five minutes; a sketch keeps its heaviest entries and gives a newcomer the weight
of the lightest one that was dropped, which bounds the error.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dataplane.core.blocks import Block
    from dataplane.core.quotas import Tenant

WINDOW_S = 300.0
WINDOWS = 12
KEPT = 64
"""Entries of one sketch; twice as many between two cleanings."""
KEPT_AFTER = 2048
"""Entries of all sketches of a window that is over, shared out evenly."""
MAX_TENANTS = 128
"""With sketches in one window; of more, those that come later are left out."""
MAX_DEPTH = 4096
MAX_POINTS = 16
"""Credited of one chain."""
MAX_KEYS = 500_000
"""Of all remembered chains together."""
Measure = Literal["hits", "bytes"]
_Chain = tuple[bytes, ...]


@dataclass(slots=True)
class Count:
    """One prefix in one sketch."""

    weight: int
    error: int
    """Of this, what it may have from others that were dropped."""
    space: int
    depth: int
    last_used: float


@dataclass(slots=True)
class Sketch:
    """The heaviest prefixes by one measure (space-saving with lazy cleaning), by their last keys."""

    counts: dict[bytes, Count] = field(default_factory=dict)
    dropped: int = 0
    """The most that anything left out can weigh."""

    def add(self, end: Block, depth: int, weight: int, now: float) -> None:
        """Credit the prefix of `depth` blocks that ends at a block."""
        count = self.counts.get(end.key)
        if count is not None:
            count.weight += weight
            count.last_used = now
            return
        self.counts[end.key] = Count(self.dropped + weight, self.dropped, end.space, depth, now)
        if len(self.counts) > 2 * KEPT:
            self.keep(KEPT)

    def keep(self, most: int) -> None:
        """Drop all but the heaviest."""
        if len(self.counts) > most:
            ranked = sorted(self.counts.items(), key=lambda item: item[1].weight, reverse=True)
            self.dropped = ranked[most][1].weight
            self.counts = dict(ranked[:most])


class Chains:
    """Keys of the prefixes that were credited last, within a bound on all keys together."""

    def __init__(self) -> None:
        self._chains: OrderedDict[bytes, _Chain] = OrderedDict()
        self._keys = 0

    def note(self, keys: _Chain, depth: int) -> None:
        """Remember the first `depth` keys of a chain."""
        end = keys[depth - 1]
        if end in self._chains:
            self._chains.move_to_end(end)
            return
        self._chains[end] = keys[:depth]
        self._keys += depth
        while self._keys > MAX_KEYS:
            _, old = self._chains.popitem(last=False)
            self._keys -= len(old)

    def get(self, end: bytes) -> _Chain | None:
        """All keys of the prefix with this last key, if they are still known."""
        return self._chains.get(end)


@dataclass(slots=True)
class Window:
    """Five minutes."""

    since: float
    sketches: dict[Tenant, dict[Measure, Sketch]] = field(default_factory=dict)

    def close(self) -> None:
        """It is over: of many tenants, less of each is kept."""
        share = max(1, KEPT_AFTER // max(1, 2 * len(self.sketches)))
        for sketches in self.sketches.values():
            for sketch in sketches.values():
                sketch.keep(min(KEPT, share))


@dataclass(slots=True)
class HotPrefix:
    """One prefix, summed over the last hour."""

    tenant: Tenant
    space: int
    end: bytes
    """Its last key."""
    depth: int
    hits: int = 0
    bytes: int = 0
    error: int = 0
    last_used: float = 0.0

    @property
    def label(self) -> str:
        """Stable as long as the prefix is listed."""
        return f"p-{self.end.hex()[:16]}"


class Prefixes:
    """Sketches of the last hour."""

    def __init__(self) -> None:
        self._windows: deque[Window] = deque(maxlen=WINDOWS)
        self._chains = Chains()

    def served(self, run: Sequence[Block], now: float) -> None:
        """A chain was acquired: its blocks, last block first, of one tenant and space."""
        length = len(run)
        sketches = self._sketches(run[0].tenant, now) if length <= MAX_DEPTH else None
        if sketches is None:
            return
        hits, heavy = sketches["hits"], sketches["bytes"]
        points = [at for at, end in enumerate(run) if end.children > 1 or at == 0]
        if len(points) > MAX_POINTS:
            points[MAX_POINTS // 2 : -MAX_POINTS // 2] = []
        keys = tuple([block.key for block in reversed(run)])
        for at in points:
            end, depth = run[at], length - at
            hits.add(end, depth, 1, now)
            heavy.add(end, depth, depth * end.nbytes, now)
            self._chains.note(keys, depth)

    def _sketches(self, tenant: Tenant, now: float) -> dict[Measure, Sketch] | None:
        windows = self._windows
        if not windows or now - windows[-1].since >= WINDOW_S:
            if windows:
                windows[-1].close()
            windows.append(Window(now))
        sketches = windows[-1].sketches
        own = sketches.get(tenant)
        if own is None and len(sketches) < MAX_TENANTS:
            own = sketches[tenant] = {"hits": Sketch(), "bytes": Sketch()}
        return own

    def top(self, by: Measure, tenant: Tenant | None, limit: int, now: float) -> list[HotPrefix]:
        """The heaviest prefixes by one measure, of one tenant or of all, heaviest first."""
        merged: dict[tuple[int, bytes], HotPrefix] = {}
        for owner, sketches in self._live(now):
            if tenant is None or owner is tenant:
                _merge(merged, owner, sketches)
        return nlargest(limit, merged.values(), key=lambda each: each.bytes if by == "bytes" else each.hits)

    def find(self, label: str, now: float) -> HotPrefix | None:
        """The listed prefix with a label."""
        merged: dict[tuple[int, bytes], HotPrefix] = {}
        try:
            start = bytes.fromhex(label.removeprefix("p-"))
        except ValueError:
            return None
        for owner, sketches in self._live(now):
            _merge(merged, owner, sketches, start)
        found = [each for each in merged.values() if each.label == label]
        return max(found, key=lambda each: each.hits, default=None)

    def _live(self, now: float) -> Iterator[tuple[Tenant, dict[Measure, Sketch]]]:
        for window in self._windows:
            if now - window.since < WINDOWS * WINDOW_S:
                yield from window.sketches.items()

    def keys(self, prefix: HotPrefix) -> _Chain | None:
        """All its keys, first to last; None when they are no longer known."""
        return self._chains.get(prefix.end)


def _merge(
    merged: dict[tuple[int, bytes], HotPrefix],
    owner: Tenant,
    sketches: dict[Measure, Sketch],
    start: bytes = b"",
) -> None:
    """Add counts of one window up; with a `start`, those of prefixes whose last key begins with it."""
    for measure, sketch in sketches.items():
        for key, count in sketch.counts.items():
            if start and not key.startswith(start):
                continue
            found = merged.get((count.space, key))
            if found is None:
                found = merged[count.space, key] = HotPrefix(owner, count.space, key, count.depth)
            if measure == "hits":
                found.hits += count.weight
                found.error += count.error
            else:
                found.bytes += count.weight
            found.last_used = max(found.last_used, count.last_used)
