"""A stop that ends, whatever hangs: a statement at a database, a thread that computes, a disk."""

import os
import threading
import time
from collections.abc import Callable

import structlog

BEYOND_GRACE_S = 10.0
"""Above twice the grace time (open requests, then the data plane): for writing down what is not written yet."""
LOG_S = 0.2
"""For the thread that writes the log."""
CUT_OFF = 1
"""Exit code."""


def cut_off_after(grace_s: float, end_children: Callable[[], None]) -> None:
    """End this process when it has not ended by itself in twice this time and `BEYOND_GRACE_S`. From a thread: the
    event loop may be what hangs."""
    within_s = 2 * grace_s + BEYOND_GRACE_S

    def cut_off() -> None:
        structlog.get_logger().error("larder.cut_off", after_s=within_s)
        end_children()
        time.sleep(LOG_S)
        os._exit(CUT_OFF)

    timer = threading.Timer(within_s, cut_off)
    timer.daemon = True
    timer.start()
