"""Parameters of a disk tier."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

DirectIO = Literal["auto", "on", "off"]
PAGE_BYTES = 4096
SEGMENT_BYTES = 1 << 30
_MIN_SEGMENT_BYTES = 4 * PAGE_BYTES
_MAX_SEGMENT_BYTES = 1 << 40
SegmentBytes = Annotated[int, Meta(ge=_MIN_SEGMENT_BYTES, le=_MAX_SEGMENT_BYTES, multiple_of=PAGE_BYTES)]


class DiskParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a tier of the type `disk`."""

    directories: Annotated[
        list[Annotated[str, Meta(pattern="^/", examples=["/mnt/nvme0/larder"])]], Meta(min_length=1, max_length=64)
    ]
    """Absolute paths, each on a disk of its own. A directory that does not exist is created."""
    segment_bytes: SegmentBytes = SEGMENT_BYTES
    """Size of each segment file. A block with its header must fit into one; existing directories keep their size."""
    direct_io: DirectIO = "auto"
    """`on`: O_DIRECT, and an error where the file system lacks it. `auto`: O_DIRECT where it works."""
    threads: Annotated[int, Meta(ge=1, le=64)] = 4
    """Blocks of one call that are read or written at the same time."""
