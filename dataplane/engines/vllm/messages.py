"""Messages between the scheduler's side and the workers' sides of the connector. vLLM carries them with each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from dataplane.protocol.spaces import Space


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """One KV-cache group of one worker."""

    space: Space
    page_tokens: int
    """Number of tokens in one of the engine's blocks; of a group of states, in a chunk."""
    alone: bool = True
    """Whether the engine has no other connector, which would store what a step computes after a failed load inside it.
    """


@dataclass(frozen=True, slots=True)
class Load:
    """Blocks of Larder to copy into an engine's blocks."""

    request: str
    keys: bytes
    """Keys of the chunks, one after another."""
    skip_tokens: int
    """Leading tokens of the first chunk that the engine already has."""
    tokens: int
    """Number of tokens to load, without the skipped ones."""
    blocks: tuple[list[int], ...]
    """For each KV-cache group, the engine's blocks that receive the tokens; 0 for a block that is not needed. A group
    of states has one for each chunk."""
    traceparent: str = ""
    """Trace of the request; empty if it is not traced."""
    in_step: bool = False
    """Whether the engine copies the blocks before the layers of this step, which reads them. Otherwise they are copied
    beside this step and later ones, and the request is scheduled after that."""
    limit_s: float = inf
    """Longest duration, beside the limits of the settings."""


@dataclass(frozen=True, slots=True)
class Save:
    """Whole chunks of an engine's blocks to store in Larder."""

    request: str
    keys: bytes
    tenant: str
    blocks: tuple[list[int], ...]
    """For each KV-cache group, the engine's blocks of all chunks; 0 for a block that the engine has freed, and for the
    end of a chunk of which it has no state. Empty if the chunks are cached and only `pin_s` and `session` are to be
    applied to them."""
    ttl_s: float = 0.0
    """Hint of the request, as in `RequestOptions`."""
    pin_s: float = 0.0
    traceparent: str = ""
    parent: bytes = b""
    """Key of the chunk before the first one; empty if the first one starts the prompt."""
    session: str = ""


@dataclass(slots=True)
class StepPlan:
    """Work of one step, from the scheduler to every worker."""

    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    """Requests whose blocks are about to be overwritten. Workers end the saves of these requests first."""
    released: list[str] = field(default_factory=list)
    """Finished requests whose blocks the scheduler keeps until every worker has reported the end of their saves."""
    dropped_loads: list[str] = field(default_factory=list)
    """Requests whose loads under way are not needed any more. Workers end these loads, and report them as failed."""
    asks_layouts: bool = False
    """Whether the scheduler does not know the workers' KV-cache groups yet. Every worker then reports its own."""
    step: int = 0
    """Number of a step that computes tokens; 0 for one that computes none."""


@dataclass(slots=True)
class StepReport:
    """Results of one step, from the workers to the scheduler. The reports of several workers are summed."""

    saves_ended: dict[str, int] = field(default_factory=dict)
    """Number of ended saves for each request."""
    loads_failed: dict[str, int] = field(default_factory=dict)
    """Number of leading tokens of each failed load that the engine keeps."""
    loads_late: list[str] = field(default_factory=list)
    """Failed loads that took too long."""
    loads_dropped: list[str] = field(default_factory=list)
    """Failed loads that were not needed any more."""
    step: int = 0
    """`StepPlan.step` of the step that ended."""
    loaded_tokens: int = 0
    """By loads beside steps, in `load_seconds`."""
    load_seconds: float = 0.0
    step_loaded_tokens: int = 0
    """By loads inside this step, in `step_load_seconds`."""
    step_load_seconds: float = 0.0
    layouts: list[list[GroupLayout]] = field(default_factory=list)
    """KV-cache groups of each worker, if the scheduler has asked; no group for a worker that Larder cannot serve."""

    def add(self, other: StepReport) -> StepReport:
        """Add the report of another worker to this one, and return it."""
        for request, count in other.saves_ended.items():
            self.saves_ended[request] = self.saves_ended.get(request, 0) + count
        for request, tokens in other.loads_failed.items():
            self.loads_failed[request] = min(self.loads_failed.get(request, tokens), tokens)
        self.loads_late += other.loads_late
        self.loads_dropped += other.loads_dropped
        self.loaded_tokens += other.loaded_tokens
        self.load_seconds += other.load_seconds
        self.step = max(self.step, other.step)
        self.step_loaded_tokens += other.step_loaded_tokens
        self.step_load_seconds += other.step_load_seconds
        self.layouts += other.layouts
        return self

    def __bool__(self) -> bool:
        return bool(self.step or self.saves_ended or self.loads_failed or self.loaded_tokens or self.layouts)
