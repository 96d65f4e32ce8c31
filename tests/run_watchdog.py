"""The process beside a test run that ends it when it lasts too long: `python -m tests.run_watchdog PID RUN SECONDS`.

It prints the stacks of all processes of the run, interrupts pytest so that it reports what it has, and kills what is
left after a grace. A line on standard input says that pytest has finished and only its exit is left.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.run_processes import of_run

GRACE_S = float(os.environ.get("PYTEST_RUN_GRACE_S", "120"))
"""For the exit after the last test, and for the report after the interrupt."""
DUMP_S = 20.0
STACKS = signal.SIGUSR2
"""Processes of pytest print their stacks on it: where the kernel does not let py-spy read them."""


def main(pid: int, run: str, limit_s: float) -> None:
    ours = os.getpid()
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    reason, interrupt = f"the test run has not ended after {limit_s:g} s (run_timeout)", True
    if _ends(pidfd, limit_s or None, also=sys.stdin.fileno()):
        return
    if select.select([sys.stdin], [], [], 0)[0]:
        reason, interrupt = f"pytest has not exited {GRACE_S:g} s after its last test", False
        if _ends(pidfd, GRACE_S):
            return
    _say(f"\n===== {reason}: stacks of its processes =====")
    _dump(pid, "pytest")
    for found in of_run(run, pid):
        if found.pid != ours:
            _dump(found.pid, found.command)
    if interrupt:
        _say(f"===== {reason}: interrupted, and killed in {GRACE_S:g} s =====")
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGINT)
        _ends(pidfd, GRACE_S / 2)
    for found in of_run(run, pid):
        if found.pid != ours:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(found.pid, signal.SIGKILL)
    if interrupt:
        _ends(pidfd, GRACE_S / 2)  # pytest reports once its workers are gone
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _ends(pidfd: int, seconds: float | None, also: int | None = None) -> bool:
    """Whether the process ends in time. `also`: a descriptor that ends the wait when it is readable."""
    poll = select.poll()
    for fd in (pidfd, also):
        if fd is not None:
            poll.register(fd, select.POLLIN)
    found = poll.poll(None if seconds is None else seconds * 1000)
    return any(fd == pidfd for fd, _ in found)


def _dump(pid: int, command: str) -> None:
    _say(f"----- {pid}: {command[:200]}")
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if spy is not None:
        try:
            done = subprocess.run(
                [spy, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=DUMP_S, check=False
            )
        except subprocess.TimeoutExpired:
            done = None
        if done is not None and done.returncode == 0:
            _say(done.stdout.rstrip())
            return
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        if caught >> (STACKS - 1) & 1:
            os.kill(pid, STACKS)
            time.sleep(0.5)  # it prints by itself
            return
        _say(f"no stack of Python's; it waits in {Path(f'/proc/{pid}/wchan').read_text() or 'user space'}")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
