"""Returns freed memory to the system. The allocator of the C library keeps free pages between live objects."""

import ctypes


def trim_memory() -> None:
    """Return freed memory to the system, if the C library can (glibc). Takes milliseconds for some ten MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
