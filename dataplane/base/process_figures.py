"""Resource usage of a process: CPU time, memory, file descriptors, garbage collection; and the commit that it runs."""

from __future__ import annotations

import gc
import json
import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

LATENCY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds of histograms of durations, and of the lag of event loops."""
COUNT_FDS_S = 5.0
"""Seconds for which a count of open descriptors is cached, because a node may have thousands."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Resource usage of this process."""

    cpu_s: float
    resident_bytes: int
    open_fds: int
    gc_collections: list[int] = field(default_factory=list)
    """Collections by generation."""
    gc_pause_s: float = 0.0
    commit: str = ""
    python: str = ""


class ProcessFigures:
    """Measures the resource usage of this process, and from its creation on the garbage collections."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._began = 0.0
        self._fds = 0
        self._count_fds_at = float("-inf")
        gc.callbacks.append(self._collected)

    def close(self) -> None:
        """Stop timing collections."""
        with suppress(ValueError):
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self._pause_s += time.perf_counter() - self._began

    def read(self, now: float) -> ProcessUse:
        """Return the figures at `now` (seconds). A figure that the machine does not provide is 0."""
        resident = 0
        with suppress(OSError, ValueError, IndexError):
            resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE
        if now >= self._count_fds_at:
            self._count_fds_at = now + COUNT_FDS_S
            with suppress(OSError):
                self._fds = len(os.listdir("/proc/self/fd")) - 1  # without the descriptor that lists them
        return ProcessUse(
            time.process_time(),
            resident,
            self._fds,
            [generation["collections"] for generation in gc.get_stats()],
            self._pause_s,
            commit(),
            platform.python_version(),
        )


@cache
def commit() -> str:
    """Return the commit of the running code: that of an installation from git, or of the work tree that it runs from;
    empty if neither is known."""
    with suppress(PackageNotFoundError, OSError, ValueError, KeyError, TypeError):
        return str(json.loads(distribution("larder").read_text("direct_url.json") or "{}")["vcs_info"]["commit_id"])
    git = Path(__file__).parents[2] / ".git"
    with suppress(OSError, ValueError):
        head = (git / "HEAD").read_text(encoding="ascii").strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        with suppress(FileNotFoundError):
            return (git / name).read_text(encoding="ascii").strip()
        for line in (git / "packed-refs").read_text(encoding="ascii").splitlines():
            if line.endswith(f" {name}"):
                return line.partition(" ")[0]
    return ""
