"""Messages of the memory keeper: the small process that holds a stopped data plane's memory until the next one starts.

The keeper listens on the AF_UNIX SEQPACKET socket `SOCKET_NAME` in the state directory and answers one request at a
time on each connection. A data plane that starts sends `Take`, receives the file descriptors as `MemoryHeld` datagrams
(the last one carries fewer than `MAX_FDS_PER_DATAGRAM`), and ends with `Taken` or `Release`. While the connection of a
taker is open, the keeper refuses `Release` from others and extends its deadline.
"""

import msgspec

SOCKET_NAME = "keeper.sock"
NEW_SOCKET_NAME = f"{SOCKET_NAME}.new"
"""Name of the socket before it is renamed. While a data plane serves, a file of this name keeps an inode for it."""
VERSION = 1
MAX_REASON_CHARACTERS = 300


class Keep(msgspec.Struct, tag="keep", array_like=True, forbid_unknown_fields=True):
    """Sent by a data plane that stops, over the socket pair with which it started the keeper. `MemoryHeld` datagrams
    follow."""

    version: int
    seconds: float
    """Time for which to hold the memory."""
    blocks: int
    """READY blocks in the memory."""
    bytes: int
    pid: int
    """Pid of the data plane, as in the index header."""
    memory: int
    """Identity of the index memory."""
    named_paths: list[str] = []
    """Names of the named segment; they are removed when the memory is released."""


class Take(msgspec.Struct, tag="take", array_like=True, forbid_unknown_fields=True):
    """Sent by a data plane that starts: request the file descriptors."""

    version: int


class Taken(msgspec.Struct, tag="taken", array_like=True, forbid_unknown_fields=True):
    """The sender serves this memory now: the keeper ends and changes nothing."""

    memory: int


class Release(msgspec.Struct, tag="release", array_like=True, forbid_unknown_fields=True):
    """Release the memory: engines stop reading it, the named segment loses its name, and the keeper ends."""

    reason: str
    """One sentence, recorded for the next start."""
    on_purpose: bool


class DescribeMemory(msgspec.Struct, tag="describe", array_like=True, forbid_unknown_fields=True):
    """Ask for a description of the memory that is held."""


class Keeping(msgspec.Struct, tag="keeping", array_like=True):
    """The memory is held: the answer to `Keep`, `Take` (before the descriptors) and `DescribeMemory`."""

    version: int
    blocks: int
    bytes: int
    seconds_left: float
    pid: int
    """Pid of the keeper."""
    memory: int


class Released(msgspec.Struct, tag="released", array_like=True):
    """Answer to `Release`, with the blocks and bytes that were held."""

    blocks: int
    bytes: int


class KeeperRefused(msgspec.Struct, tag="refused", array_like=True):
    """The request was not served."""

    message: str


Request = Take | Taken | Release | DescribeMemory
Reply = Keeping | Released | KeeperRefused
