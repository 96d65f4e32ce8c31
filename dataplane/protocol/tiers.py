"""Tiers as records: the description of a tier that a node receives."""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from dataplane.base.visible import is_printable

Spill = Literal["commit", "second_touch", "evict", "cascade", "drain", "off"]
Compress = Literal["none", "zstd", "fp8"]
MAX_NAME_CHARACTERS = 64
MAX_BUDGET_BYTES = 1 << 60
MIN_IN_FLIGHT_BYTES = 1 << 20
MAX_IN_FLIGHT_BYTES = 1 << 36
MAX_DEADLINE_S = 300.0
EXPECTED_TIER_NAME = f"expected 1 to {MAX_NAME_CHARACTERS} printable characters"
MAX_ORDER = 1000
"""Highest number of a tier in the order of look-ups; the lowest is 0."""
MEMORY = "memory"
"""Name of memory in lists of tiers, such as reports of usage. No tier may have this name."""


class TierSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One tier of a node. Fields at their default are omitted from snapshots."""

    name: str
    type: str
    """A type that is registered: `disk`, `mooncake`, `redis`, `s3`, or that of an installed package."""
    budget_bytes: int
    """The most bytes that this node keeps in the tier."""
    parameters: dict[str, Any] = {}
    """What the type needs, such as directories or an endpoint. Secrets are references: `env:NAME` or `file:/path`."""
    order: int = 0
    """A block that several tiers hold is loaded from the one with the lowest number."""
    spill: Spill = "commit"
    """Which blocks are copied to the tier: all that are stored, those that are used a second time, those that are soon
    evicted from memory, those that a tier before it in the order evicts soon (`cascade`), or none. With `drain`, it
    gets none, and the blocks that it alone holds are copied to another tier."""
    load_deadline_s: float = 5.0
    """A load that has not begun after this many seconds is cancelled."""
    max_bytes_in_flight: int = 64 << 20
    """The most bytes that are copied to the tier, and that are loaded from it, at the same time."""
    compress: Compress = "none"
    """How blocks are encoded when they are copied to the tier: not at all, losslessly with zstd, or as fp8, which is
    lossy. Blocks that the tier holds already stay as they are."""


def is_tier_name(name: str) -> bool:
    """Return whether a tier may have this name."""
    return 1 <= len(name) <= MAX_NAME_CHARACTERS and is_printable(name)


def tier_faults(spec: TierSpec) -> Iterator[tuple[str, str]]:
    """Yield each field of a tier that is not valid, and what was expected. The type checks its parameters itself."""
    if not is_tier_name(spec.name):
        yield "name", EXPECTED_TIER_NAME
    if spec.name == MEMORY:
        yield "name", f"expected another name: {MEMORY!r} is reserved for the memory of the pool"
    for name, low, high in (
        ("budget_bytes", 1, MAX_BUDGET_BYTES),
        ("order", 0, MAX_ORDER),
        ("max_bytes_in_flight", MIN_IN_FLIGHT_BYTES, MAX_IN_FLIGHT_BYTES),
    ):
        number = getattr(spec, name)
        if not low <= number <= high:
            yield name, f"expected {low} to {high}, got {number}"
    if not 0 < spec.load_deadline_s <= MAX_DEADLINE_S:
        message = f"expected more than 0 and at most {MAX_DEADLINE_S:g} seconds, got {spec.load_deadline_s}"
        yield "load_deadline_s", message
