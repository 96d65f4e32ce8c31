"""An object store in shared memory: any process of a user puts, evicts and reads, and any of them may be killed.

    store = ShmObjectStore.create(1 << 30, name="images")          # in one process
    handle = store.put("cat.png", array)

    images = ShmObjectStore.attach("images")                       # in another one
    pixels = images.get("cat.png")                                 # a read-only view; nothing is copied

`layout` describes the memory and the protocol; `locks` has the two kinds of locks, which the kernel releases when their
holder dies; `attachment` is one process's part: its mappings, its row and its leases; `space` places objects;
`entries` changes the table of objects under the lock; `encoding` turns values into bytes and back; `stats` reads
counters without attaching.

Non-goals: other machines, other users, persistence. Processes of one user trust each other with the memory, but a
corrupt header, handle or object is an error and not a crash. Nothing is unpickled unless both sides ask for it.
"""

from dataplane.ipc.store.errors import ObjectExists, ObjectMissing, StoreCorrupted, StoreError, StoreFull, StoreTimeout
from dataplane.ipc.store.handles import ObjectHandle, StoreHandle
from dataplane.ipc.store.stats import StoreStats, live_stores
from dataplane.ipc.store.store import ShmObjectStore

__all__ = [
    "ObjectExists",
    "ObjectHandle",
    "ObjectMissing",
    "ShmObjectStore",
    "StoreCorrupted",
    "StoreError",
    "StoreFull",
    "StoreHandle",
    "StoreStats",
    "StoreTimeout",
    "live_stores",
]
