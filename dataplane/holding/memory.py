"""The memory that a holder has."""

from __future__ import annotations

import os
from contextlib import suppress

from dataplane.holding import SOCKETS
from dataplane.holding.messages import BadMessage, Key, Message, memory_entries

CLOSED_OFFSET = 7 * 8
"""Byte offset of the word H_CLOSED in the header of the index (`dataplane.protocol.layout`)."""
Files = dict[Key, tuple[int, int]]
"""Descriptor and size in bytes."""
_INDEX = ("index", 0)
_NAMED = ("named", 0)


class HeldMemory:
    """Duplicates of the descriptors of a data plane, which sends a list of all of them and then each change."""

    def __init__(self) -> None:
        self.files: Files = {}
        """Memory of the data plane that runs now, or ran last."""
        self._coming: Files = {}
        """Memory that arrived before the list was complete."""
        self.is_listed = False
        """Whether the data plane has sent the list of all its memory."""
        self.named_paths: list[str] = []
        """Names of the named segment."""

    def hold(self, message: Message, fds: list[int]) -> None:
        """Serve `hold`. Takes ownership of the descriptors. Raises BadMessage."""
        into = self.files if self.is_listed else self._coming
        for (kind, number, nbytes), fd in zip(memory_entries(message, 3, fds), fds, strict=True):
            _close(into, (kind, number))
            into[kind, number] = fd, nbytes
        if message.get("last") and not self.is_listed:
            self.is_listed = True
            self._replaced()
            self.files, self._coming = self._coming, {}

    def keep(self, message: Message) -> None:
        """Serve `keep`: list memory that is held already, by its device and inode, to avoid a second descriptor of it.
        Raises BadMessage."""
        for kind, number, device, inode in memory_entries(message, 4):
            held = self.files.get((kind, number))
            status = None if held is None or self.is_listed else os.fstat(held[0])
            if status is None or (status.st_dev, status.st_ino) != (device, inode):
                raise BadMessage(f"memory: {kind} {number} is not held")
            _close(self._coming, (kind, number))
            self._coming[kind, number] = self.files.pop((kind, number))

    def drop(self, message: Message) -> None:
        """Serve `drop`. Raises BadMessage."""
        for kind, number in memory_entries(message, 2):
            _close(self.files if self.is_listed else self._coming, (kind, number))

    def writer_gone(self) -> None:
        """Keep the memory of a data plane that stopped or was killed, perhaps before its list was complete."""
        if self._coming:
            if not self._same_memory():
                self._replaced()
            for key, file in self._coming.items():
                _close(self.files, key)
                self.files[key] = file
            self._coming = {}

    def _replaced(self) -> None:
        """Close what was held, because the writer's memory replaces it. If it is not the same memory, engines that read
        it are notified."""
        index = self.files.get(_INDEX)
        if index is not None and not self._same_memory():
            _mark_closed(index[0])
        self.clear()

    def _same_memory(self) -> bool:
        held, coming = self.files.get(_INDEX), self._coming.get(_INDEX)
        return held is None or coming is None or os.path.samestat(os.fstat(held[0]), os.fstat(coming[0]))

    def drop_sockets(self) -> None:
        """Close the connections of a gateway's clients, and its listener."""
        for key in [key for key in self.files if key[0] in SOCKETS]:
            _close(self.files, key)

    def clear(self) -> None:
        """Close all that was held."""
        for key in list(self.files):
            _close(self.files, key)

    def discard(self) -> None:
        """Close all, also of a list that is incomplete: the data plane has marked its memory as released."""
        self.is_listed = True
        self.clear()
        self.files, self._coming = self._coming, {}
        self.clear()

    def mark_released(self) -> bool:
        """Tell engines that the memory is released, and remove the names of the named segment. Return whether there
        was an index, which says that a cache was lost."""
        index = self.files.get(_INDEX)
        if index is None:
            return False
        _mark_closed(index[0])
        self._remove_names()
        return True

    def _remove_names(self) -> None:
        named = self.files.get(_NAMED)
        for path in self.named_paths if named is not None else ():
            with suppress(OSError, ValueError):
                assert named is not None
                if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(named[0])):
                    os.unlink(path)


def _close(files: Files, key: Key) -> None:
    held = files.pop(key, None)
    if held is not None:
        os.close(held[0])


def _mark_closed(fd: int) -> None:
    """Set the word that tells engines that the memory was released. Nothing is mapped: a file that its owner truncates
    would end this process."""
    with suppress(OSError):
        os.pwrite(fd, b"\1", CLOSED_OFFSET)  # the lowest byte of a word that is 0
