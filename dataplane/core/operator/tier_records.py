"""Tiers that are records: what the decisions need of the part of the data plane that opens them."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Protocol

from dataplane.protocol.codes import Code
from dataplane.protocol.tier_directory import MAX_TIERS
from dataplane.protocol.tiers import TierSpec, tier_faults


class TierRecords(Protocol):
    """Opens, changes and closes tiers. No method blocks: the work is done on threads, after the call."""

    @property
    def names_of_settings(self) -> Set[str]:
        """Names of the tiers that the settings declare, which no record can take."""
        ...

    def check(self, spec: TierSpec) -> Sequence[tuple[str, str]]:
        """Return the fields that the tier's type does not accept (`type`, or `parameters.NAME`), and why."""
        ...

    def apply(self, specs: Sequence[TierSpec], now: float) -> None:
        """Use these tiers, besides those of the settings, and no other. They are valid."""
        ...


def wrong_in_tier(spec: TierSpec, records: TierRecords) -> Iterator[tuple[str, Code, str]]:
    """Yield the invalid fields of one record, a code, and why."""
    for field, message in (*tier_faults(spec), *records.check(spec)):
        yield field, Code.BAD_FIELD, message
    if spec.name in records.names_of_settings:
        yield "name", Code.BAD_FIELD, f"{spec.name!r} is the name of a tier of the node's settings"


def wrong_in_tiers(specs: Mapping[int, TierSpec], records: TierRecords) -> Iterator[tuple[str, Code, str]]:
    """Yield the faults of valid records together: the path, a code, and why."""
    settings = len(records.names_of_settings)
    if len(specs) + settings > MAX_TIERS:
        message = f"expected at most {MAX_TIERS} tiers on a node, got {len(specs)} and {settings} of its settings"
        yield "tiers", Code.TOO_MANY, message
