"""Named segments of this process, whose pages may go back to the machine unless a test says otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from dataplane.memory.named import NamedFile
from dataplane.memory.shared_file import SharedFile


def created(name: str, nbytes: int, may_give_back: Callable[[], bool] = lambda: True, **options: Any) -> NamedFile:
    return NamedFile.create(name, nbytes, os.getpid(), 1, may_give_back, **options)


def adopted(file: SharedFile, pid: int, started: int) -> NamedFile:
    return NamedFile.adopt(file, pid, started, lambda: True)
