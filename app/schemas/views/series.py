"""Series for charts, and the marks on their time axis."""

from typing import Literal

import msgspec

from app.observe.series import ScopeKind

MarkKind = Literal["change", "alert", "crash", "restart", "node", "push", "tier", "manager", "database"]
MarkLevel = Literal["info", "warning", "error"]


class SeriesValues(msgspec.Struct, frozen=True):
    """One series: a value for each time in `at`."""

    name: str
    unit: str
    node: str | None
    """Null: all nodes."""
    tenant: str | None
    """Null: all tenants that the caller may see."""
    values: list[float | None]
    """Null where nothing was measured. A gauge is the mean of the step, a rate is per second, a ratio is between 0 and
    1."""


class Mark(msgspec.Struct, frozen=True):
    """An event to draw on the time axis."""

    at: float
    """Unix seconds."""
    kind: MarkKind
    level: MarkLevel
    title: str
    node: str | None
    """Null if it is not about one node."""
    tenant: str | None
    """Null if it is not about one tenant."""
    ref: str
    """What it was made from: `audit/ID` or `event/ID`; empty if the caller may not see that."""


class SeriesAnswer(msgspec.Struct, frozen=True):
    """Series with a common time axis."""

    step_s: int
    at: list[int]
    """Unix seconds, oldest first, multiples of the step. A value is for the step that ends at this time."""
    series: list[SeriesValues]
    """For each name, in the order of the query: one for each node and each tenant of the query, or one for the
    fleet."""
    marks: list[Mark]
    """Oldest first; the newest 500."""
    problem: str = ""
    """Why points of this time are missing or not stored; empty if nothing is wrong."""


class SeriesDescription(msgspec.Struct, frozen=True):
    """One series that can be queried."""

    name: str
    unit: str
    meaning: str
    scopes: list[ScopeKind]
    """What it is kept for: the fleet and each node, each tenant, or both."""


class SeriesNames(msgspec.Struct, frozen=True):
    """All series that the caller can query."""

    items: list[SeriesDescription]
    total: int
