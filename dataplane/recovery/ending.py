"""Ways in which a data plane ends, and the effect on its memory."""

from enum import Enum


class Ending(Enum):
    """How a data plane ends."""

    RELEASE = "release"
    """Mark the memory as released: engines stop reading it, and the machine gets it back."""
    KEEP = "keep"
    """Leave the memory to the holder for `keep_memory_s`."""
    HAND_OVER = "hand_over"
    """Leave memory and sockets to the holder for a data plane that starts at once. Also the end by an error that
    nothing caught."""
