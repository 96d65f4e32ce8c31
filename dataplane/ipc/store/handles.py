"""Names of stores and of objects, which processes send each other. Both are msgspec structs, and can be pickled."""

import msgspec


class StoreHandle(msgspec.Struct, frozen=True):
    """A store. Valid as long as any process is attached to it, even if the process that made the handle is gone."""

    identity: str
    """32 hexadecimal digits, drawn at random when the store was created."""
    pid: int
    """The process that made the handle, where the store is looked for first."""
    fd: int
    """Its file descriptor of the memory."""


class ObjectHandle(msgspec.Struct, frozen=True, array_like=True):
    """An object in a store: its slot, and a sequence number to detect that the object was replaced."""

    store: int
    """The first 8 bytes of the store's identity."""
    slot: int
    """Row of the table of objects."""
    sequence: int
    """Number of the object, which is never used again."""
