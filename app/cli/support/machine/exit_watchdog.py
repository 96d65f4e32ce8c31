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
CUT_OFF = 1
"""Exit code of a process that was cut off."""


def cut_off_after(grace_s: float, last_act: Callable[[], None]) -> None:
    """End this process if it has not exited within twice `grace_s` and `BEYOND_GRACE_S`. A thread does this, because
    the event loop may be what hangs. `last_act` runs before the end; it may replace the process."""
    within_s = 2 * grace_s + BEYOND_GRACE_S

    def cut_off() -> None:
        structlog.get_logger().error("larder.cut_off", after_s=within_s)
        time.sleep(LOG_S)
        try:
            last_act()
        finally:
            os._exit(CUT_OFF)

    timer = threading.Timer(within_s, cut_off)
    timer.daemon = True
    timer.start()
