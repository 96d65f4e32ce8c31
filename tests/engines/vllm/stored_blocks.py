"""Where a data plane stores its blocks, and bits of them that change."""

import os

import numpy as np

from dataplane.client import Client
from dataplane.protocol.layout import HOT_NBYTES, HOT_OFFSET, HOT_SPACE_SEGMENT
from tests.dataplane.client.faulty_memory import memory_fd
from tests.dataplane.plane import Plane


def stored_blocks(client: Client) -> dict[int, tuple[int, int]]:
    """Return segment and offset of each descriptor that has ever had bytes."""
    attachment = client._memory.current
    assert attachment is not None
    hot = attachment.index.hot
    return {
        int(at): (int(hot[at, HOT_SPACE_SEGMENT]) >> 32, int(hot[at, HOT_OFFSET]))
        for at in np.flatnonzero(hot[:, HOT_NBYTES])
    }


def flip(plane: Plane, segment: int, offset: int) -> None:
    """Change one bit of a block."""
    with memory_fd(plane, "segment", segment) as fd:
        byte = os.pread(fd, 1, offset)
        os.pwrite(fd, bytes([byte[0] ^ 0x10]), offset)
