"""The process of a data plane: how it started, and the resources that it uses."""

from typing import Annotated, Literal

import msgspec

from dataplane.protocol.bounded import Finite, Time
from dataplane.protocol.stats.figures import counter, gauge
from dataplane.protocol.stats.histogram import Histogram

StartKind = Literal["unknown", "first", "warm", "cold"]


class CacheStart(msgspec.Struct):
    """How a data plane process started: with the memory of the previous process, or with an empty cache."""

    kind: StartKind = "unknown"
    """`first`: no earlier process cached anything in this state directory. `warm`: this process took over the memory of
    its predecessor. `cold`: it could not, and the cache started empty. `unknown`: the data plane is of an older
    release.
    """
    at: Time = 0.0
    """Unix seconds."""
    reason: str = ""
    """One sentence that says why the start is cold."""
    released: bool = False
    """The memory was released on purpose (`larder down`, `larder up --fresh`, `keep_memory_s = 0`), not lost."""
    blocks: Annotated[int, gauge("larder_cache_start_kept_blocks")] = 0
    """Blocks that the data plane took over at its start."""
    bytes: Annotated[int, gauge("larder_cache_start_kept_bytes")] = 0
    """Bytes that the data plane took over at its start."""
    lost_blocks: Annotated[int, gauge("larder_cache_start_lost_blocks")] = 0
    """Blocks of the previous data plane that were lost when this one started.

    As far as the previous process recorded them."""
    lost_bytes: Annotated[int, gauge("larder_cache_start_lost_bytes")] = 0
    """Bytes of the previous data plane that were lost when this one started."""


class ProcessStats(msgspec.Struct):
    """Resource usage and release of the process."""

    cpu_s: Annotated[Finite, counter("larder_process_cpu_seconds")] = 0.0
    """CPU time of all threads."""
    resident_bytes: Annotated[int, gauge("larder_process_resident_bytes")] = 0
    """Resident memory."""
    open_fds: Annotated[int, gauge("larder_process_open_fds")] = 0
    """Open file descriptors."""
    gc_collections: list[int] = []
    """Collections of Python's garbage collector by generation."""
    gc_pause_s: Annotated[float, counter("larder_gc_pause_seconds")] = 0.0
    """Time spent in garbage collections."""
    loop_lag: Histogram | None = None
    """Delay in seconds of the event loop's timers."""
    version: str = ""
    commit: str = ""
    """Commit of the source code; empty if unknown."""
    python: str = ""
