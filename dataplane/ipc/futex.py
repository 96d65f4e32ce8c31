"""`futex(2)` on words of memory that several processes map, and a full memory fence.

A waiter sleeps only if the word still has the value that it read, which the kernel compares under its own lock. A
writer stores first and wakes afterwards. Both directions need the fence between their store and their load, because
x86-64 may delay a store past a later load.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from struct import Struct

_SYS_FUTEX = 202  # x86-64
_WAIT = 0
_WAKE = 1
_EVERY_WAITER = 0x7FFFFFFF
_EXPECTED = (errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR)

_TIMESPEC = Struct("<qq")
_WAITER = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int)
_wait = ctypes.CDLL(None, use_errno=True).syscall
_wait.argtypes = (*_WAITER, ctypes.c_uint32, ctypes.c_char_p)
_wake = ctypes.PyDLL(None).syscall
"""Does not release the GIL: the call never blocks, and another thread that took the GIL could keep it for 5 ms."""
_wake.argtypes = (*_WAITER, ctypes.c_int)
_wait.restype = _wake.restype = ctypes.c_long
_fence = threading.Lock()


def fence() -> None:
    """Make all stores of this thread visible before its next load: taking a lock is a locked instruction."""
    with _fence:
        pass


def _new_fence() -> None:
    global _fence
    _fence = threading.Lock()  # another thread may have held it when this process was forked


os.register_at_fork(after_in_child=_new_fence)


def wait(address: int, expected: int, timeout_s: float) -> None:
    """Sleep while the 32-bit word at `address` is `expected`, at most `timeout_s` seconds.

    Returns at once if the word differs, and may return early. Raises OSError if the kernel refuses the call.
    """
    seconds = int(timeout_s)
    limit = _TIMESPEC.pack(seconds, int((timeout_s - seconds) * 1e9))
    if _wait(_SYS_FUTEX, address, _WAIT, expected, limit) == -1 and (number := ctypes.get_errno()) not in _EXPECTED:
        raise OSError(number, f"futex wait: {os.strerror(number)}")


def wake(address: int) -> int:
    """Wake every process that sleeps on the word at `address`. Return the number of woken threads."""
    woken: int = _wake(_SYS_FUTEX, address, _WAKE, _EVERY_WAITER)
    return max(woken, 0)
