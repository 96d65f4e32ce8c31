"""One figure, and whether it is good enough."""

from typing import Literal

import msgspec

Direction = Literal["min", "max"]


class Result(msgspec.Struct, frozen=True):
    """A row of the result file; scripts rely on these names."""

    name: str
    value: float
    unit: str
    target: float | None = None
    """What the value must reach; None: reported only."""
    direction: Direction = "max"
    """`min`: the target is the least that will do. `max`: it is the most."""
    met: bool | None = None
    """None without a target."""
    baseline: float | None = None
    """The same thing without Larder, in the same unit unless the unit is a ratio (then GB/s of memcpy)."""


class Report(msgspec.Struct, frozen=True):
    """The result file."""

    machine: dict[str, str | int]
    memcpy_gbps: float
    """Median over the run of copies between two shared mappings; 10^9 bytes a second."""
    results: list[Result]


def at_most(name: str, value: float, unit: str, target: float | None, baseline: float | None = None) -> Result:
    """A figure that must not exceed its target."""
    return Result(name, value, unit, target, "max", None if target is None else value <= target, baseline)


def at_least(name: str, value: float, unit: str, target: float | None, baseline: float | None = None) -> Result:
    """A figure that must reach its target."""
    return Result(name, value, unit, target, "min", None if target is None else value >= target, baseline)
