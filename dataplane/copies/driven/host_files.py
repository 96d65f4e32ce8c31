"""Memory files of engines, which this process reads and writes by system calls.

An engine keeps its descriptor and may change the file at any time. This process never maps such a file: an access to a
mapping whose file was truncated raises SIGBUS, which ends the process. `preadv` and `pwritev` return fewer bytes
instead. This process opens the file again, so that it does not share file status flags with the engine: with O_APPEND,
`pwritev` would ignore the offset.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress

from dataplane.copies.copying import CopyFailed
from dataplane.protocol.codes import Code, ProtocolError

_BLOCK_BYTES = 512
"""Unit of `st_blocks`."""
_F_SEAL_FUTURE_WRITE = 0x0010  # fcntl has it from Python 3.13 on
_READ_ONLY_SEALS = fcntl.F_SEAL_WRITE | _F_SEAL_FUTURE_WRITE

_Transfer = Callable[[int, list[memoryview], int], int]
"""`os.preadv` or `os.pwritev`."""


class HostFile:
    """One memory file of an engine."""

    def __init__(self, fd: int, nbytes: int, field: str) -> None:
        """Open the file of an engine's descriptor again. The caller closes the engine's descriptor.

        Raise ProtocolError unless the file is a memfd or another file in shared memory, has `nbytes` bytes that are all
        allocated, and may be written. No call here can block, whatever the file is: the first one refuses files that
        are not in shared memory, because they have no seals.
        """
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError:
            raise _refused("expected a memfd", field) from None
        if seals & _READ_ONLY_SEALS:
            raise _refused("expected a memfd without a seal against writing", field)
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
            raise _refused("expected a memfd that is open for reading and writing", field)
        status = os.fstat(fd)
        if status.st_size != nbytes:
            raise _refused(f"expected a file of {nbytes} bytes, got {status.st_size}", field)
        if status.st_blocks * _BLOCK_BYTES < nbytes:
            raise _refused(
                f"expected a file whose {nbytes} bytes are allocated, got {status.st_blocks * _BLOCK_BYTES}: "
                "otherwise a load would allocate memory on behalf of the data plane",
                field,
            )
        try:
            # Without O_NONBLOCK, the call waits up to 45 s for the end of a lease that the engine has on the file.
            self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except BlockingIOError:
            raise _refused("expected a memfd without a file lease", field) from None
        except OSError as error:
            raise ProtocolError(Code.DEVICE_REFUSED, f"cannot open the file: {error.strerror}", field) from None
        self.nbytes = nbytes

    def read(self, into: memoryview, offset: int) -> None:
        """Read bytes from an offset. Raise CopyFailed if the file has become shorter."""
        self._all(os.preadv, into, offset)

    def write(self, content: memoryview, offset: int) -> None:
        """Write bytes at an offset. Raise CopyFailed."""
        self._all(os.pwritev, content, offset)

    def _all(self, call: _Transfer, buffer: memoryview, offset: int) -> None:
        done = 0
        while done < len(buffer):
            try:
                moved = call(self._fd, [buffer[done:]], offset + done)
            except OSError as error:
                raise CopyFailed(f"the engine's memory file: {error.strerror}") from None
            if not moved:
                raise CopyFailed(f"the engine's memory file ends at {offset + done} bytes")
            done += moved

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._fd)


def _refused(message: str, field: str) -> ProtocolError:
    return ProtocolError(Code.BAD_CACHE, message, field)
