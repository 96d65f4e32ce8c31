"""Hot prefixes: the prompt prefixes that were served most over the last hour, in bounded memory.

Every acquired chain credits its last block and the blocks with several children, because shared prompts end where
chains branch. When a chain has too many such blocks, only those near its two ends are credited. Counts live in
space-saving sketches, one per tenant, measure and five-minute window. A sketch keeps its heaviest entries and starts a
new entry with the weight of the heaviest dropped entry, which bounds the error.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING, Literal

from dataplane.protocol.keys import KEY_BYTES, split_keys

if TYPE_CHECKING:
    from dataplane.core.blocks.blocks import Block
    from dataplane.core.tenants.tenant import Tenant

WINDOW_S = 300.0
WINDOWS = 12
SKETCH_SIZE = 64
"""Maximum number of entries in one sketch after a cleanup; a sketch may grow to twice as many before the next one."""
TOTAL_SKETCH_SIZE = 2048
"""Maximum number of entries in all sketches of a closed window, divided evenly."""
MAX_TENANTS = 128
"""Maximum number of tenants with sketches in one window; further tenants are not counted."""
MAX_DEPTH = 4096
MAX_POINTS = 16
"""Maximum number of blocks that one chain credits."""
MAX_KEYS = 250_000
"""Maximum number of keys over all remembered chains: 8 MB."""
Measure = Literal["hits", "bytes"]


@dataclass(slots=True)
class PrefixCount:
    """One prefix in one sketch."""

    weight: int
    error: int
    """Maximum part of `weight` that may come from dropped entries."""
    depth: int
    last_used: float


@dataclass(slots=True)
class CountSketch:
    """The heaviest prefixes by one measure, by space and last key: spaces of one tokenizer have equal keys
    (space-saving with lazy cleanup)."""

    counts: dict[tuple[int, bytes], PrefixCount] = field(default_factory=dict)
    dropped: int = 0
    """Maximum weight of any prefix that is not in the sketch."""

    def add(self, end: Block, depth: int, weight: int, now: float) -> None:
        """Credit the prefix of `depth` blocks that ends at a block."""
        name = end.space, end.key
        count = self.counts.get(name)
        if count is not None:
            count.weight += weight
            count.last_used = now
            return
        self.counts[name] = PrefixCount(self.dropped + weight, self.dropped, depth, now)
        if len(self.counts) > 2 * SKETCH_SIZE:
            self.keep(SKETCH_SIZE)

    def keep(self, most: int) -> None:
        """Drop all but the `most` heaviest entries."""
        if len(self.counts) > most:
            ranked = sorted(self.counts.items(), key=lambda item: item[1].weight, reverse=True)
            self.dropped = ranked[most][1].weight
            self.counts = dict(ranked[:most])


class RecentChains:
    """Keys of the most recently credited prefixes, with a bound on the total number of keys."""

    def __init__(self) -> None:
        self._chains: OrderedDict[bytes, bytes] = OrderedDict()
        """Keys in chain order, one after the other, by the last key."""
        self._nbytes = 0

    def note(self, keys: bytes, end: bytes) -> None:
        """Remember a chain, whose last key is `end`."""
        if end in self._chains:
            self._chains.move_to_end(end)
            return
        self._chains[end] = keys
        self._nbytes += len(keys)
        while self._nbytes > MAX_KEYS * KEY_BYTES:
            _, old = self._chains.popitem(last=False)
            self._nbytes -= len(old)

    def get(self, end: bytes) -> tuple[bytes, ...] | None:
        """Return all keys of the prefix with this last key, or None if they are no longer known."""
        keys = self._chains.get(end)
        return None if keys is None else tuple(split_keys(keys))


@dataclass(slots=True)
class SketchWindow:
    """The sketches of one five-minute window."""

    since: float
    sketches: dict[Tenant, dict[Measure, CountSketch]] = field(default_factory=dict)

    def close(self) -> None:
        """Shrink the sketches of a window that is over. With many tenants, fewer entries of each are kept."""
        share = max(1, TOTAL_SKETCH_SIZE // max(1, 2 * len(self.sketches)))
        for sketches in self.sketches.values():
            for sketch in sketches.values():
                sketch.keep(min(SKETCH_SIZE, share))


@dataclass(slots=True)
class HotPrefix:
    """One prefix, summed over the last hour."""

    tenant: Tenant
    space: int
    end: bytes
    """Last key."""
    depth: int
    hits: int = 0
    bytes: int = 0
    error: int = 0
    last_used: float = 0.0

    @property
    def label(self) -> str:
        """Return a label that is stable as long as the prefix is listed."""
        return f"p-{self.end.hex()[:16]}"


class PrefixSketches:
    """The sketches of the last hour."""

    def __init__(self) -> None:
        self._windows: deque[SketchWindow] = deque(maxlen=WINDOWS)
        self._chains = RecentChains()

    def served(self, run: Sequence[Block], now: float) -> None:
        """Credit an acquired chain. `run` holds its blocks, last block first, all of one tenant and space."""
        length = len(run)
        sketches = self._sketches(run[0].tenant, now) if length <= MAX_DEPTH else None
        if sketches is None:
            return
        hits, heavy = sketches["hits"], sketches["bytes"]
        points = [at for at, end in enumerate(run) if end.children > 1 or at == 0]
        if len(points) > MAX_POINTS:
            points[MAX_POINTS // 2 : -MAX_POINTS // 2] = []
        keys = b"".join([block.key for block in reversed(run)])
        for at in points:
            end, depth = run[at], length - at
            hits.add(end, depth, 1, now)
            heavy.add(end, depth, depth * end.nbytes, now)
            self._chains.note(keys[: depth * KEY_BYTES], end.key)

    def _sketches(self, tenant: Tenant, now: float) -> dict[Measure, CountSketch] | None:
        windows = self._windows
        if not windows or now - windows[-1].since >= WINDOW_S:
            if windows:
                windows[-1].close()
            windows.append(SketchWindow(now))
        sketches = windows[-1].sketches
        tenant_sketches = sketches.get(tenant)
        if tenant_sketches is None and len(sketches) < MAX_TENANTS:
            tenant_sketches = sketches[tenant] = {"hits": CountSketch(), "bytes": CountSketch()}
        return tenant_sketches

    def top(self, by: Measure, tenant: Tenant | None, limit: int, now: float) -> list[HotPrefix]:
        """Return the heaviest prefixes by one measure, heaviest first, of one tenant or of all (None)."""
        merged: dict[tuple[int, bytes], HotPrefix] = {}
        for owner, sketches in self._live(now):
            if tenant is None or owner is tenant:
                _merge(merged, owner, sketches)
        return nlargest(limit, merged.values(), key=lambda prefix: prefix.bytes if by == "bytes" else prefix.hits)

    def find(self, label: str, now: float, spaces: Container[int]) -> HotPrefix | None:
        """Return the listed prefix with a label, or None. Of several, those in `spaces`, which are in use, come first,
        and then the one with most hits."""
        merged: dict[tuple[int, bytes], HotPrefix] = {}
        try:
            start = bytes.fromhex(label.removeprefix("p-"))
        except ValueError:
            return None
        for owner, sketches in self._live(now):
            _merge(merged, owner, sketches, start)
        matches = [prefix for prefix in merged.values() if prefix.label == label]
        return max(matches, key=lambda prefix: (prefix.space in spaces, prefix.hits), default=None)

    def _live(self, now: float) -> Iterator[tuple[Tenant, dict[Measure, CountSketch]]]:
        for window in self._windows:
            if now - window.since < WINDOWS * WINDOW_S:
                yield from window.sketches.items()

    def keys(self, prefix: HotPrefix) -> tuple[bytes, ...] | None:
        """Return all keys of a prefix in chain order, or None if they are no longer known."""
        return self._chains.get(prefix.end)


def _merge(
    merged: dict[tuple[int, bytes], HotPrefix], owner: Tenant, sketches: dict[Measure, CountSketch], start: bytes = b""
) -> None:
    """Add the counts of one window to `merged`; with `start`, only of prefixes whose last key begins with it."""
    for measure, sketch in sketches.items():
        for (space, key), count in sketch.counts.items():
            if start and not key.startswith(start):
                continue
            prefix = merged.get((space, key))
            if prefix is None:
                prefix = merged[space, key] = HotPrefix(owner, space, key, count.depth)
            if measure == "hits":
                prefix.hits += count.weight
                prefix.error += count.error
            else:
                prefix.bytes += count.weight
            prefix.last_used = max(prefix.last_used, count.last_used)
