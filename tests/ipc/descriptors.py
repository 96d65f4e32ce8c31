"""A process that has used up its descriptors."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


def opened() -> int:
    """Return the number of open descriptors of this process."""
    return len(os.listdir("/proc/self/fd")) - 1


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Let this process open at most `count` more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (number for number in range(soft) if not os.path.lexists(f"/proc/self/fd/{number}"))
    limit = [next(free) for _ in range(count + 1)][-1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
