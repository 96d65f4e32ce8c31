"""The expensive half of the lease protocol: expedited global `membarrier(2)`.

Engines register once, before they attach; the data plane issues the barrier before it sums lease counters. `layout`
explains the theory.
"""

import ctypes
import os
import platform

_SYS_MEMBARRIER = 324  # x86-64
_GLOBAL_EXPEDITED = 1 << 1
_REGISTER_GLOBAL_EXPEDITED = 1 << 2
_NEEDED = _GLOBAL_EXPEDITED | _REGISTER_GLOBAL_EXPEDITED

_libc = ctypes.CDLL(None, use_errno=True)


class UnsupportedMachine(Exception):
    """The memory protocol is not proven on this processor."""


def check_machine() -> None:
    """Raise UnsupportedMachine on a processor whose memory order the protocol is not proven for."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise UnsupportedMachine(
            f"Larder's shared-memory protocol is proven on x86-64 only; this machine is {platform.machine()}"
        )


def supported() -> bool:
    """Return whether the kernel supports expedited global barriers. Costs one system call."""
    mask = _libc.syscall(_SYS_MEMBARRIER, 0, 0, 0)
    return bool(mask > 0 and mask & _NEEDED == _NEEDED)


def register() -> bool:
    """Register this process for barriers. Return False if the kernel does not support them."""
    return supported() and bool(_libc.syscall(_SYS_MEMBARRIER, _REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0)


def fence() -> None:
    """Make every registered, running process drain its store buffer. Takes about 1 µs. Raises OSError."""
    if _libc.syscall(_SYS_MEMBARRIER, _GLOBAL_EXPEDITED, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"membarrier: {os.strerror(number)}")
