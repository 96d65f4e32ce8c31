"""Errors of the store."""


class StoreError(Exception):
    """Base of all errors of the store."""


class StoreCorrupted(StoreError):
    """The shared memory has contents that no writer of this version would store."""


class StoreTimeout(StoreError, TimeoutError):
    """A living process held the store's lock until the deadline."""


class StoreFull(StoreError, MemoryError):
    """Objects that are being read, written or waited for leave no room."""


class ObjectMissing(StoreError, KeyError):
    """The object was never stored, or has been evicted."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class ObjectExists(StoreError, ValueError):
    """The key has an object already."""
