"""Instructions that processes execute, counted by the processor.

Processor time on a shared machine differs by percents between two equal runs; the count of instructions hardly does.
"""

import ctypes
import os
import struct
from typing import Self

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _INSTRUCTIONS = 0, 1
_ATTRIBUTES_BYTES = 128
_FLAGS_OFFSET = 40
_INHERIT, _EXCLUDE_HYPERVISOR = 1 << 1, 1 << 6


class InstructionCounter:
    """Instructions in user mode and in the kernel, of a process and of all threads and processes that it starts from
    now on: attach it right after the start."""

    def __init__(self, pid: int) -> None:
        """Attach to the process. Raise OSError where the processor does not count or the kernel does not allow it."""
        attributes = ctypes.create_string_buffer(_ATTRIBUTES_BYTES)
        struct.pack_into("<IIQ", attributes, 0, _HARDWARE, _ATTRIBUTES_BYTES, _INSTRUCTIONS)
        struct.pack_into("<Q", attributes, _FLAGS_OFFSET, _INHERIT | _EXCLUDE_HYPERVISOR)
        number = _SYSCALL.get(os.uname().machine)
        if number is None:
            raise OSError(f"no number of perf_event_open is known for {os.uname().machine}")
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = int(libc.syscall(number, attributes, pid, -1, -1, 0))
        if self._fd < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Attach to the process; None where instructions cannot be counted."""
        try:
            return cls(pid)
        except OSError:
            return None

    def read(self) -> int:
        """Return the number of instructions since the start."""
        (count,) = struct.unpack("<Q", os.read(self._fd, 8))
        return int(count)

    def close(self) -> None:
        os.close(self._fd)
