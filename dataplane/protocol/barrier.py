"""The expensive half of the lease protocol: `membarrier(2)`, expedited and global.

Engines register once, before they attach; the data plane issues the barrier before it sums lease counters. See the
theory in `layout`.
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
    """The memory protocol was not proven on this processor."""


def check_machine() -> None:
    """Refuse processors whose memory order the protocol was not proven on."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise UnsupportedMachine(
            f"Larder's shared-memory protocol is proven on x86-64 only; this machine is {platform.machine()}"
        )


def supported() -> bool:
    """Whether the kernel has expedited global barriers. One system call."""
    mask = _libc.syscall(_SYS_MEMBARRIER, 0, 0, 0)
    return bool(mask > 0 and mask & _NEEDED == _NEEDED)


def register() -> bool:
    """Let barriers reach this process from now on; False when the kernel cannot."""
    return supported() and bool(_libc.syscall(_SYS_MEMBARRIER, _REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0)


def fence() -> None:
    """Make every registered, running process drain its store buffer. About 1 µs. Raises OSError."""
    if _libc.syscall(_SYS_MEMBARRIER, _GLOBAL_EXPEDITED, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"membarrier: {os.strerror(number)}")
