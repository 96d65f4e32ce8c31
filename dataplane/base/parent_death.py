"""Processes that end with their parent, even if it is killed."""

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def end_with(parent: int, number: int) -> None:
    """Have the kernel send this process a signal when its parent ends. Called in a child process, between fork and
    exec; exits if the parent has ended before."""
    _libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)
