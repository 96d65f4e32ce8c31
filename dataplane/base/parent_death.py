"""Processes that end with their parent, even if it is killed."""

import ctypes
import os
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def ending_with(parent: int, number: int) -> Callable[[], None]:
    """Return a function that has the kernel send the calling process a signal when its parent ends, and exits if the
    parent has ended before. A child calls it between fork and exec, where no library may be loaded: the C library is
    loaded here."""
    prctl = ctypes.CDLL(None).prctl

    def end() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)

    return end
