"""How much work a call does, counted instead of timed."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(work: Callable[[], object]) -> int:
    """Count the lines of Python that `work` runs: the same number on every machine, however busy it is. A loop in C
    counts as one line. No garbage is collected meanwhile, because that may run lines of others."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count
