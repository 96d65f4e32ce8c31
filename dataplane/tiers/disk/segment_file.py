"""A segment: a preallocated file of slots of one size.

    0   magic            8 bytes  b"LARDERS1"
    8   version          u32      1
    12  number           u32      as in the name of the file
    16  cluster          16 bytes
    32  directory        16 bytes identity in the superblock
    48  segment size     u64
    56  slot size        u64
    64  checksum         u64      xxh3-64 of the 64 bytes before

in the first page; slots follow. A segment that is given to another slot size is truncated and allocated again, so that
it reads as zeros: bytes that an engine stored in a slot can never be taken for a header of the new slots.
"""

import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import numpy as np
import xxhash

from dataplane.tiers.disk.alignment import read_page, write_page
from dataplane.tiers.disk.own_file import open_own
from dataplane.tiers.disk.parameters import PAGE_BYTES
from dataplane.tiers.disk.superblock import Superblock

VERSION = 1
ERASED = bytes(PAGE_BYTES)
_MAGIC = b"LARDERS1"
_FIELDS = Struct("<8sII16s16sQQQ")
_PREFIX = "segment-"
_NAME = re.compile(r"segment-(\d{6}|[1-9]\d{6,8})", re.ASCII)
"""As `SegmentFile` names them: another spelling of a number would name another file."""
_DETAIL = np.dtype([("sequence", "<u8"), ("length", "<u8"), ("tenant", "<u4"), ("checksum", "V16"), ("parent", "V32")])


class SegmentFile:
    """An open segment, with what its slots hold. The owner serializes access to everything but the file."""

    __slots__ = ("_directory", "details", "fd", "free", "number", "path", "segment_bytes", "slot_bytes", "slots")

    def __init__(self, folder: Path, superblock: Superblock, number: int, *, direct: bool, create: bool) -> None:
        """Open or create a file. Raises OSError."""
        self.number = number
        self.path = folder / f"{_PREFIX}{number:06}"
        self.segment_bytes = superblock.segment_bytes
        self._directory = bytes.fromhex(superblock.cluster), bytes.fromhex(superblock.directory)
        flags = os.O_RDWR | (os.O_DIRECT if direct else 0)
        self.fd = open_own(self.path, flags | (os.O_CREAT | os.O_EXCL if create else 0))
        self._shape(0)

    @property
    def used_slots(self) -> int:
        """Slots that are not free."""
        return self.slots - len(self.free)

    def offset(self, slot: int) -> int:
        return PAGE_BYTES + slot * self.slot_bytes

    def read_shape(self) -> str:
        """Take the slot size from the file. Return what is wrong with the file, or nothing. Raises OSError.

        The slots of a segment without a valid first page are lost.
        """
        page = bytes(read_page(self.fd, 0))
        fault = self._fault(page)
        self._shape(0 if fault else _FIELDS.unpack_from(page)[6])
        return fault

    def allocate(self, slot_bytes: int) -> None:
        """Give the segment to a slot size; the bytes of every slot become zeros. Raises OSError."""
        self._shape(0)
        os.ftruncate(self.fd, 0)
        try:
            os.posix_fallocate(self.fd, 0, self.segment_bytes)
        except OSError:
            os.ftruncate(self.fd, 0)  # what was allocated before the device was full
            raise
        fields = _FIELDS.pack(_MAGIC, VERSION, self.number, *self._directory, self.segment_bytes, slot_bytes, 0)[:-8]
        page = bytearray(PAGE_BYTES)
        page[: _FIELDS.size] = fields + xxhash.xxh3_64_intdigest(fields).to_bytes(8, "little")
        write_page(self.fd, 0, bytes(page))
        self._shape(slot_bytes)

    def complete_slots(self) -> int:
        """Return the number of slots before the end of the file. Raises OSError."""
        size = os.fstat(self.fd).st_size
        return max(0, min(self.slots, (size - PAGE_BYTES) // self.slot_bytes)) if self.slots else 0

    def extend(self) -> None:
        """Allocate what is missing at the end of a file that was truncated. Raises OSError."""
        if self.slots and os.fstat(self.fd).st_size < self.segment_bytes:
            os.posix_fallocate(self.fd, 0, self.segment_bytes)

    def erase(self, slot: int) -> None:
        """Overwrite the header of a slot with zeros. Raises OSError."""
        write_page(self.fd, self.offset(slot), ERASED)

    def free_all_but(self, used: np.ndarray) -> None:
        """Set the free slots from an array of bool."""
        self.free = array("I", np.flatnonzero(~used)[::-1].astype(np.uint32).tobytes())

    def remove(self) -> None:
        """Delete the file. Raises OSError."""
        os.unlink(self.path)

    def close(self) -> None:
        os.close(self.fd)

    def _shape(self, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self.slots = (self.segment_bytes - PAGE_BYTES) // slot_bytes if slot_bytes else 0
        self.free = array("I", range(self.slots - 1, -1, -1))
        self.details = np.zeros(self.slots, _DETAIL)

    def _fault(self, page: bytes) -> str:
        if len(page) < PAGE_BYTES:
            return "the file is shorter than a page"
        magic, version, number, cluster, directory, segment_bytes, slot_bytes, checksum = _FIELDS.unpack_from(page)
        if magic != _MAGIC or xxhash.xxh3_64_intdigest(page[: _FIELDS.size - 8]) != checksum:
            return "the first page is not one of a segment"
        if version != VERSION:
            return f"version: expected {VERSION}, got {version}"
        if (cluster, directory) != self._directory:
            return "the segment is of another directory"
        if number != self.number or segment_bytes != self.segment_bytes:
            return "the segment has another number or size"
        valid = slot_bytes >= PAGE_BYTES and slot_bytes % PAGE_BYTES == 0
        return "" if valid and slot_bytes <= segment_bytes - PAGE_BYTES else f"slot size: got {slot_bytes}"


def segment_numbers(folder: Path) -> Iterator[int]:
    """Return the numbers of the segments of a directory, in order. Raises OSError."""
    matches = (_NAME.fullmatch(entry.name) for entry in os.scandir(folder))
    yield from sorted(int(match[1]) for match in matches if match is not None)
