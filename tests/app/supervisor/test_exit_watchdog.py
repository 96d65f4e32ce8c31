"""A stop that hangs ends."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import threading
from app.cli.support.machine import exit_watchdog
from dataplane.base.log import configure

configure("info", "json")
exit_watchdog.BEYOND_GRACE_S = 0.1
exit_watchdog.exit_after(0.0, lambda: print("children end", flush=True))
threading.Event().wait()
"""


REPLACED = """
import os, socket, sys, threading
from types import SimpleNamespace
from app.cli.commands.machine import up
from app.cli.support.machine import exit_watchdog
from dataplane.base.log import configure

if os.environ.get(up.LOCK_VARIABLE):
    lock, listener = up._inherited_descriptor(up.LOCK_VARIABLE), up._inherited_listener(("127.0.0.1", 0))
    print("replaced", os.path.sameopenfile(lock, os.open(sys.argv[2], os.O_RDONLY)), listener is not None)
    sys.exit(0)
configure("info", "json")
handover = up._Handover(os.open(sys.argv[2], os.O_RDONLY))
handover.listener = socket.create_server(("127.0.0.1", 0))
exit_watchdog.BEYOND_GRACE_S = 0.1
exit_watchdog.exit_after(0.0, up._last_act(SimpleNamespace(supervisor=None), handover))
threading.Event().wait()
"""


def test_a_restart_that_hangs_replaces_the_process_with_its_lock_and_its_socket(tmp_path: Path) -> None:
    program, locked = tmp_path / "program.py", tmp_path / "up.lock"
    program.write_text(REPLACED)
    locked.touch()
    ran = subprocess.run(
        [sys.executable, str(program), "up", str(locked)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "replaced True True\n"), ran.stderr
    assert '"larder.shutdown_timed_out"' in ran.stderr


def test_a_stop_that_hangs_ends_with_its_children_and_reports_it() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (1, "children end\n")
    assert '"larder.shutdown_timed_out"' in ran.stderr
