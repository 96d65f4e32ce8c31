"""Find the processes of one test run in /proc, also those that have lost their parent."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tests.run_marks import MARK, run_folder


@dataclass(frozen=True)
class Found:
    pid: int
    parent: int
    started: int
    state: str
    """One letter of the kernel's: `Z` is a process that ended and that its parent has not waited for."""
    command: str

    def lives(self) -> bool:
        again = _read(self.pid)
        return again is not None and again.started == self.started and again.state not in "ZX"


def of_run(run: str, root: int) -> list[Found]:
    """Living processes of the run: those that descend from `root`, and those whose environment has the run's mark or
    names its folder (`larder up` hands only Larder's own variables on). Without `root` itself; oldest first."""
    everything = {
        found.pid: found for each in os.listdir("/proc") if each.isdecimal() and (found := _read(int(each)))
    }
    ours = [
        each
        for each in everything.values()
        if each.pid != root
        and each.state not in "ZX"
        and (_descends(each, root, everything) or _marked(each, run))
    ]
    return sorted(ours, key=lambda each: (each.started, each.pid))


def _descends(found: Found, root: int, everything: dict[int, Found]) -> bool:
    seen: set[int] = set()
    while found.parent != root:
        seen.add(found.pid)
        above = everything.get(found.parent)
        if above is None or above.pid in seen:
            return False
        found = above
    return True


def _marked(found: Found, run: str) -> bool:
    try:
        environ = Path(f"/proc/{found.pid}/environ").read_bytes()
    except OSError:  # it ended, or is another user's
        return False
    mark = re.escape(f"{MARK}={run}".encode())
    folder = re.escape(bytes(run_folder().with_name(f"larder-{run}")))
    return re.search(rb"(?:\A|\0)" + mark + rb"[.\0]|" + folder + rb"[./\0]", environ) is not None


def _read(pid: int) -> Found | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        command = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        )
    except OSError:
        return None
    return Found(pid, int(fields[1]), int(fields[19]), fields[0], command)
