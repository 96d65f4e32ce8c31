"""Find the stores of this user: by the names of memfds among the open files in /proc.

A memfd's name is not a file name: it cannot be left behind, and it vanishes with the last process that has the memory
open.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dataplane.ipc.arguments import instance
from dataplane.ipc.memory import EXHAUSTED
from dataplane.ipc.store.errors import StoreError
from dataplane.ipc.store.handles import StoreHandle

_PREFIX = "larder-store:"
_LINK = re.compile(r"/memfd:larder-store:(?P<name>[\w.-]*):(?P<identity>[0-9a-f]{32}) \(deleted\)")
_NAME = re.compile(r"[A-Za-z0-9_.-]{0,128}")


class OpenFile(NamedTuple):
    """An open file of a store's memory in some process."""

    name: str
    identity: str
    path: Path
    """Opens the same memory."""


def file_name(name: str, identity: str) -> str:
    """Return the name of a store's memfd. Raise ValueError for a name that cannot be one, and TypeError."""
    instance("name", name, str)
    if not _NAME.fullmatch(name):
        raise ValueError(f"name: expected up to 128 letters, digits, '.', '_' and '-', got {name!r}")
    return f"{_PREFIX}{name}:{identity}"


def open_files() -> Iterator[OpenFile]:
    """Yield the open files of stores in all processes that this one may look into, each store many times."""
    uid = os.geteuid()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                if process.stat().st_uid == uid:
                    yield from _of_process(process)
            except OSError as error:  # it ended, or does not let itself be read
                if error.errno in EXHAUSTED:
                    raise


def open_store(store: StoreHandle | str) -> int:
    """Return a new fd of a store's memory, given its handle or its name. Raise StoreError if there is none, or if
    several have the name, TypeError, and OSError if this process has no free descriptor."""
    if isinstance(store, StoreHandle):
        near = _of_file(Path(f"/proc/{store.pid:d}/fd/{store.fd:d}"))
        found = [near] if near is not None and near.identity == store.identity else []
        found = found or [each for each in open_files() if each.identity == store.identity]
        what = f"store {store.identity}"
    else:
        instance("store", store, str)
        found = [each for each in open_files() if each.name == store]
        what = f"store named {store!r}"
    if len({each.identity for each in found}) > 1:
        raise StoreError(f"there is more than one {what}: attach by handle")
    for each in found:
        try:
            return os.open(each.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:  # that process has just ended
            if error.errno in EXHAUSTED:
                raise
    raise StoreError(f"no process of uid {os.geteuid()} has a {what} open")


def _of_process(process: Path) -> Iterator[OpenFile]:
    for path in (process / "fd").iterdir():
        found = _of_file(path)
        if found is not None:
            yield found


def _of_file(path: Path) -> OpenFile | None:
    try:
        match = _LINK.fullmatch(os.readlink(path))
    except OSError:
        return None
    return None if match is None else OpenFile(match["name"], match["identity"], path)
