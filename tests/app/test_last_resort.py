"""A stop that hangs ends."""

import subprocess
import sys

PROGRAM = """
import threading
from app.cli import last_resort
from app.observe.log import configure

configure("info", "json")
last_resort.BEYOND_GRACE_S = 0.1
last_resort.cut_off_after(0.0, lambda: print("children end", flush=True))
threading.Event().wait()
"""


def test_a_stop_that_hangs_ends_with_its_children_and_says_so() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (1, "children end\n")
    assert '"larder.cut_off"' in ran.stderr
