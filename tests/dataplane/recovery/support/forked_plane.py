"""A data plane that is forked, in a session of its own, and that ends with its supervisor: `python -m
tests.dataplane.recovery.support.forked_plane PARENT ARGUMENT…`, where PARENT is the process id of the supervisor."""

import os
import runpy
import signal
import sys

from dataplane.base.parent_death import ending_with

if __name__ == "__main__":
    os.setsid()
    ending_with(int(sys.argv.pop(1)), signal.SIGKILL)()
    runpy.run_module("dataplane", run_name="__main__", alter_sys=True)
