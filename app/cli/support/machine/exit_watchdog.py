"""Bound the time of a shutdown, whatever hangs: a database statement, a thread that computes, a disk."""

import os
import threading
import time
from collections.abc import Callable

import structlog

BEYOND_GRACE_S = 10.0
"""Seconds beyond twice the grace time (open requests, then the data plane), for pending writes."""
LOG_S = 0.2
"""Seconds for the thread that writes the log."""
TIMED_OUT = 1
"""Exit code of a process that was cut off."""


def exit_after(grace_s: float, last_act: Callable[[], None]) -> None:
    """End this process if it has not exited within twice `grace_s` and `BEYOND_GRACE_S`. A thread does this, because
    the event loop may be what hangs. `last_act` runs before the end; it may replace the process."""
    within_s = 2 * grace_s + BEYOND_GRACE_S

    def exit_now() -> None:
        structlog.get_logger().error("larder.shutdown_timed_out", after_s=within_s)
        time.sleep(LOG_S)
        try:
            last_act()
        finally:
            os._exit(TIMED_OUT)

    timer = threading.Timer(within_s, exit_now)
    timer.daemon = True
    timer.start()
