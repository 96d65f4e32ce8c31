"""A disk cache of which a test takes the power."""

import os

import pytest

from dataplane.tiers.disk.alignment import read_page
from dataplane.tiers.disk.parameters import PAGE_BYTES
from dataplane.tiers.disk.segment_file import SegmentFile


class ErasureCache:
    """The headers that slots have on the device while nothing has synced their erasure."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.headers: dict[tuple[str, int], bytes] = {}
        self.synced: list[str] = []
        """Segments, in the order of their syncs."""
        self.error = 0
        """Error of every sync; 0 for none."""
        self._erase = SegmentFile.erase
        cache = self

        def erase(segment: SegmentFile, slot: int) -> None:
            offset = segment.offset(slot)
            cache.headers.setdefault((str(segment.path), offset), bytes(read_page(segment.fd, offset)))
            cache._erase(segment, slot)

        monkeypatch.setattr(SegmentFile, "erase", erase)
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _sync(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if "/segment-" not in path:
            return
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        self.synced.append(path)
        self.headers = {place: header for place, header in self.headers.items() if place[0] != path}

    def lose_power(self) -> None:
        """Undo what was not synced."""
        for (path, offset), header in self.headers.items():
            with open(path, "r+b") as file:
                file.seek(offset)
                assert file.read(PAGE_BYTES) == bytes(PAGE_BYTES)
                file.seek(offset)
                file.write(header)
        self.headers = {}
