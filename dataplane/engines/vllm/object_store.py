"""vLLM's shared-memory object store on Larder's: classes with the interface of `SingleWriterShmRingBuffer` and
`SingleWriterShmObjectStorage` of vLLM 0.32, and `install`, which replaces them.

Differences: no name in /dev/shm is left behind, a dead reader blocks no other process, readers share no lock, an object
that is being read cannot be replaced, and the least recently used object is evicted instead of the oldest one. vLLM's
serializer still encodes and copies the values.

*Requests that never run.* vLLM's frontend puts the inputs of a request into the store before it checks the request, and
workers read them when the request is first scheduled. If a request is refused before, its handles are collected in the
frontend, and their references are returned (`_Signature`). If it was sent to the engine core and is aborted while it
waits, nothing tells the frontend: the object can be evicted when it was not used for LARDER_SHIM_UNREAD_S seconds. A
request may wait for longer than that, so the engine core holds leases on the objects of waiting requests
(`WaitingRequests`), and ends a request whose object is gone with an error of that request.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, SupportsIndex

from dataplane.ipc.store import ObjectExists, ObjectMissing, ShmObjectStore
from dataplane.ipc.store.attachment import ObjectLease, StoreAttachment
from dataplane.ipc.store.handles import ObjectHandle
from dataplane.ipc.store.layout import H_READERS, H_SECRET, H_SECRET_END, READY, STATE_BITS

MODULE = "vllm.distributed.device_communicators.shm_object_storage"
USER = "vllm.multimodal.cache.shm"
CACHES = "vllm.multimodal.cache"
CORE = "vllm.v1.engine.core"
UNREAD_VARIABLE = "LARDER_SHIM_UNREAD_S"
UNREAD_S = 300.0
"""Default of that variable. It must exceed the time from the encoding of a request's inputs to its arrival in the
engine core, and that from the scheduling of a request to the workers' read."""
_NO_NAME = re.compile(r"[^\w.-]", re.ASCII)


def install() -> None:
    """Replace vLLM's classes, in the module that defines them and in the one that uses them, and the function with
    which its engine core creates its cache."""
    caches: Any = import_module(CACHES)
    kind_of, make = caches.factories._get_cache_type, caches.engine_receiver_cache_from_config

    def engine_receiver_cache_from_config(config: Any) -> Any:
        return WaitingRequests() if kind_of(config) == "shm" else make(config)

    for name in (MODULE, USER):
        module: Any = import_module(name)
        module.SingleWriterShmRingBuffer = SingleWriterShmRingBuffer
        module.SingleWriterShmObjectStorage = SingleWriterShmObjectStorage
    users: list[Any] = [caches, sys.modules.get(CORE)]  # the core is not imported here: that takes seconds
    for user in filter(None, users):
        user.engine_receiver_cache_from_config = engine_receiver_cache_from_config


def _unread_s() -> float:
    """Return the setting in seconds. Raise ValueError."""
    text = os.environ.get(UNREAD_VARIABLE, "")
    try:
        seconds = float(text or UNREAD_S)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise ValueError(f"{UNREAD_VARIABLE}: expected a number of seconds above 0, got {text!r}")
    return seconds


class _SharedMemory:
    """The attributes of `multiprocessing.shared_memory.SharedMemory` that vLLM reads."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size


class SingleWriterShmRingBuffer:
    """The memory of a store, and a ring of chunks in it, for callers that allocate chunks themselves.

    A chunk is `[4 bytes id][4 bytes size][bytes]`; its size includes the first 8 bytes. A store uses either its objects
    or these chunks.
    """

    ID_NBYTES = 4
    SIZE_NBYTES = 4
    MD_SIZE = ID_NBYTES + SIZE_NBYTES
    ID_MAX = 2**31

    def __init__(self, data_buffer_size: int, name: str | None = None, create: bool = False) -> None:
        """Create memory of so many bytes, or open that of a name. Raise StoreError if there is none."""
        self.data_buffer_size = data_buffer_size
        self.is_writer = create
        name = name or f"psm_{secrets.token_hex(4)}"
        self.shared_memory = _SharedMemory(name, data_buffer_size)
        self.metadata: dict[int, int] = {}
        """Address of each chunk or object, by its id."""
        self.monotonic_id_start = 0
        self.monotonic_id_end = 0
        self.data_buffer_start = 0
        self.data_buffer_end = 0
        self._chunks: deque[tuple[int, int, int]] = deque()
        """Id, address and size of each chunk, oldest first."""
        if create:
            self.store = ShmObjectStore.create(data_buffer_size, name=_label(name), unread_s=_unread_s())
            return
        self.store = ShmObjectStore.attach(_label(name))
        if self.attachment.shape.data_bytes < data_buffer_size:
            raise ValueError(
                f"data_buffer_size: expected {self.attachment.shape.data_bytes} bytes at most, got {data_buffer_size}"
            )

    @property
    def attachment(self) -> StoreAttachment:
        return self.store.attachment

    def handle(self) -> tuple[int, str]:
        return self.data_buffer_size, self.shared_memory.name

    def get_auth_secret(self) -> bytes:
        """Return the bytes that sign handles."""
        return self.attachment.tables.header[H_SECRET:H_SECRET_END].tobytes()

    def clear(self) -> None:
        """Forget all chunks. Ids are not reused, so an older handle never names a newer chunk."""
        assert self.is_writer, "only the writer clears"
        self.metadata.clear()
        self._chunks.clear()
        self.monotonic_id_start = self.monotonic_id_end
        self.data_buffer_start = self.data_buffer_end = 0

    def close(self) -> None:
        self.store.close()

    def int2byte(self, integer: int) -> bytes:
        return integer.to_bytes(self.ID_NBYTES, "little", signed=True)

    def byte2int(self, byte_data: bytes) -> int:
        return int.from_bytes(byte_data, "little", signed=True)

    def allocate_buf(self, size: int) -> tuple[int, int]:
        """Reserve a chunk. Return its address and its id. Raise MemoryError if it does not fit behind the others."""
        assert self.is_writer, "only the writer allocates"
        assert size > 0, f"size: expected more than 0, got {size}"
        needed, capacity = size + self.MD_SIZE, self.data_buffer_size
        address = self.data_buffer_end
        if address % capacity + needed > capacity:  # a chunk is never split
            address = (address // capacity + 1) * capacity
        if address + needed - self.data_buffer_start > capacity:
            raise MemoryError(f"no room for {needed} bytes: free_buf() frees chunks")
        number = self.monotonic_id_end
        offset = address % capacity
        head = self.int2byte(number) + self.int2byte(needed)
        self._bytes()[offset : offset + self.MD_SIZE] = head
        self._chunks.append((number, address, needed))
        self.metadata[number] = address
        self.data_buffer_end = address + needed
        self.monotonic_id_end = (number + 1) % self.ID_MAX
        return address, number

    @contextmanager
    def access_buf(self, address: int) -> Iterator[tuple[memoryview, tuple[int, int]]]:
        """Give the bytes of the chunk at an address, its id and its size. Raise ValueError if there is none."""
        data, offset = self._bytes(), address % self.data_buffer_size
        head = bytes(data[offset : offset + self.MD_SIZE])
        number, size = self.byte2int(head[: self.ID_NBYTES]), self.byte2int(head[self.ID_NBYTES :])
        if not (len(head) == self.MD_SIZE <= size <= self.data_buffer_size - offset):
            raise ValueError(f"address {address}: expected a chunk, got a size of {size} bytes")
        with data[offset + self.MD_SIZE : offset + size] as chunk:
            yield chunk, (number, size)

    def free_buf(self, is_free_fn: Callable[[int, memoryview], bool], nbytes: int | None = None) -> list[int]:
        """Free chunks, oldest first, until one may not be freed or `nbytes` are free. Return their ids."""
        assert self.is_writer, "only the writer frees"
        freed: list[int] = []
        freed_bytes = 0
        while self._chunks and freed_bytes < (self.data_buffer_size if nbytes is None else nbytes):
            number, address, size = self._chunks[0]
            with self.access_buf(address) as (chunk, _):
                if not is_free_fn(number, chunk):
                    break
            self._chunks.popleft()
            del self.metadata[number]
            freed.append(number)
            freed_bytes += size
        self.monotonic_id_start = self._chunks[0][0] if self._chunks else self.monotonic_id_end
        if self._chunks:
            self.data_buffer_start = self._chunks[0][1]
        else:
            self.data_buffer_start = self.data_buffer_end = 0
        return freed

    def _bytes(self) -> memoryview:
        attachment = self.attachment
        return (attachment.writable or attachment.readable).array().data[: self.data_buffer_size]


class SingleWriterShmObjectStorage:
    """vLLM's interface: the writer names objects by key, readers by address, id and signature."""

    def __init__(
        self,
        max_object_size: int,
        n_readers: int,
        ring_buffer: SingleWriterShmRingBuffer,
        serde_class: Any = None,
        reader_lock: Any = None,
    ) -> None:
        """`serde_class`: vLLM's MsgpackSerde by default. `reader_lock` is required of readers, and not used."""
        self.max_object_size = max_object_size
        self.n_readers = n_readers
        self.serde_class = serde_class or import_module(MODULE).MsgpackSerde
        self.ser_de = self.serde_class()
        self.ring_buffer = ring_buffer
        self.is_writer = ring_buffer.is_writer
        self.flag_bytes = 4
        self.key_index: dict[str, tuple[int, int]] = {}
        """Address and id by key. Only the writer uses it and the two attributes below."""
        self.id_index: dict[int, str] = {}
        self._clear_pending = False
        """Whether the next put removes the objects that were there at `clear`."""
        self._touched: dict[int, Any] = {}
        """Leases that keep touched objects, by id."""
        self._unsigned: dict[str, int] = {}
        """By key, the number of handles that were returned and not signed yet."""
        self._unsent: deque[ObjectHandle] = deque()
        """Handles that were collected before they were sent; other threads may append."""
        self._store = ring_buffer.store
        self._reader_lock = reader_lock
        if self.is_writer:
            self._attachment.tables.header[H_READERS] = n_readers
        elif reader_lock is None:
            raise ValueError("Lock must be provided for readers.")

    @property
    def _attachment(self) -> StoreAttachment:
        return self.ring_buffer.attachment

    # ---- the writer

    def is_cached(self, key: str) -> bool:
        return key in self.key_index and self._store.is_cached(key)

    def put(self, key: str, value: Any) -> tuple[int, int]:
        """Store a value under a new key. Return its address and its id.

        Raise ValueError if the key exists or the value is too large, MemoryError if objects that readers have not read
        yet leave no room.
        """
        if key in self.key_index:
            raise ValueError(f"Key '{key}' already exists in the storage.")
        data, nbytes, head, head_bytes = self.ser_de.serialize(value)
        size = self.flag_bytes + nbytes + head_bytes
        if size > self.max_object_size:
            raise ValueError(
                f"Serialized object size ({size} bytes) exceeds max object size ({self.max_object_size} bytes)"
            )
        pieces = [head, *(data if isinstance(data, list) else [data])]
        self._clear_now()
        self._return_unsent()
        try:
            handle = self._store.put_pieces(key, pieces)
        except ObjectExists:
            raise ValueError(f"Key '{key}' already exists in the storage.") from None
        except ValueError as error:  # larger than the whole store
            raise MemoryError(str(error)) from None
        finally:
            self._forget_evicted()
        offset = self._address(handle)
        self.key_index[key] = offset
        self.id_index[handle.sequence] = key
        self.ring_buffer.metadata[handle.sequence] = offset[0]
        self.ring_buffer.monotonic_id_end = handle.sequence + 1
        self._unsigned[key] = 1
        return offset

    def get_cached(self, key: str) -> tuple[int, int]:
        """Return the address and the id of a key's object, which is kept until every reader has read it. Raise
        KeyError."""
        handle = self._store.get_cached(key)
        self._touched.pop(handle.sequence, None)
        self._unsigned[key] = self._unsigned.get(key, 0) + 1
        return self._address(handle)

    def get_signature(self, key: str) -> list[int]:
        """Return the signature that proves to readers that the writer made a key's handle. Raise KeyError.

        The first signature after `put` or `get_cached` belongs to the handle that these returned: if it is collected
        before anything read it, the handle was not sent, and the object does not wait for readers of it.
        """
        address, monotonic_id = self.key_index[key]
        content = self._sign(key, address, monotonic_id)
        unsigned = self._unsigned.pop(key, 0)
        if not unsigned:
            return list(content)
        if unsigned > 1:
            self._unsigned[key] = unsigned - 1
        return _Signature(content, self._unsent, self._handle(address, monotonic_id))

    def _return_unsent(self) -> None:
        while self._unsent:
            self._store.return_handle(self._unsent.popleft())

    def free_unused(self) -> None:
        """Evict objects that every reader has read, until twice the largest object's size is freed."""
        self._clear_now()
        self._return_unsent()
        self._store.evict(2 * self.max_object_size)
        self._forget_evicted()

    def release_touches(self) -> None:
        """Release the leases of objects that were touched and not looked up."""
        self._touched.clear()

    def clear(self) -> None:
        """Forget all objects; a reader's call does nothing. Until the next put, readers can still read the objects
        that they have handles of."""
        if self.is_writer:
            self._touched.clear()
            self._clear_pending = True
            for index in (self.key_index, self.id_index, self.ring_buffer.metadata, self._unsigned):
                index.clear()

    def _clear_now(self) -> None:
        if self._clear_pending:
            self._store.clear()
            self._clear_pending = False

    # ---- both sides

    def touch(self, key: str, address: int = 0, monotonic_id: int = 0, signature: list[int] | None = None) -> None:
        """Writer: keep an object until it is looked up. Reader: raise ValueError unless the handle is valid."""
        if not self.is_writer:
            self.verify_signature(key, address, monotonic_id, signature)
            self._handle(address, monotonic_id)
        elif key in self.key_index:
            handle = self._handle(*self.key_index[key])
            lease = self._attachment.lease(handle.slot, handle.sequence)
            if lease is not None:
                self._touched[handle.sequence] = lease

    def get(self, address: int, monotonic_id: int, signature: list[int] | None = None, key: str | None = None) -> Any:
        """Return an object. Raise ValueError if the handle is not the writer's, or its object is gone."""
        if not self.is_writer:
            self.verify_signature(key, address, monotonic_id, signature)
        try:
            data = self._store.get(self._handle(address, monotonic_id))
        except ObjectMissing:
            raise _modified(address, monotonic_id) from None
        with warnings.catch_warnings():  # torch warns of memory that it cannot write; the serializer copies it
            warnings.simplefilter("ignore", UserWarning)
            return self.ser_de.deserialize(data)

    def verify_signature(self, key: str | None, address: int, monotonic_id: int, signature: list[int] | None) -> None:
        """Raise ValueError unless the writer signed the handle, and, on its side, unless it is the key's newest."""
        if self.is_writer and (key is None or self.key_index.get(key) != (address, monotonic_id)):
            raise ValueError("Invalid SHM handle signature for cache key.")
        if signature is None or key is None:
            raise ValueError("Missing SHM handle signature for cache key.")
        try:
            signature_bytes = b"" if {int} != set(map(type, signature)) else bytes(signature)
            valid = hmac.compare_digest(signature_bytes, self._sign(key, address, monotonic_id))
        except (TypeError, ValueError, OverflowError, AttributeError):
            valid = False
        if not valid:
            raise ValueError("Invalid SHM handle signature for cache key.")

    def handle(self) -> Any:
        """Return vLLM's handle, with which `create_from_handle` opens the store in another process."""
        return import_module(MODULE).ShmObjectStorageHandle(
            max_object_size=self.max_object_size,
            n_readers=self.n_readers,
            ring_buffer_handle=self.ring_buffer.handle(),
            serde_class=self.serde_class,
            reader_lock=self._reader_lock,
        )

    @staticmethod
    def create_from_handle(handle: Any) -> SingleWriterShmObjectStorage:
        return SingleWriterShmObjectStorage(
            handle.max_object_size,
            handle.n_readers,
            SingleWriterShmRingBuffer(*handle.ring_buffer_handle),
            handle.serde_class,
            handle.reader_lock,
        )

    def close(self) -> None:
        self._touched.clear()
        self.ring_buffer.close()

    def _sign(self, key: str, address: int, monotonic_id: int) -> bytes:
        message = address.to_bytes(8, "little") + monotonic_id.to_bytes(8, "little") + key.encode()
        return hmac.digest(self.ring_buffer.get_auth_secret(), message, hashlib.sha256)

    def _address(self, handle: ObjectHandle) -> tuple[int, int]:
        return self._attachment.location_of(handle.slot)[0], handle.sequence

    def _handle(self, address: int, monotonic_id: int) -> ObjectHandle:
        """Return the handle of an object of our store. Raise ValueError if it is gone."""
        handle = _find(self._attachment, address, monotonic_id)
        if handle is None:
            raise _modified(address, monotonic_id)
        return handle

    def _forget_evicted(self) -> None:
        tables = self._attachment.tables
        ready = {int(tables.control[slot]) >> STATE_BITS for slot in tables.in_state(READY)}
        for number in [number for number in self.id_index if number not in ready]:
            key = self.id_index.pop(number)
            del self.key_index[key]
            self._unsigned.pop(key, None)
            self.ring_buffer.metadata.pop(number, None)


class _Signature(list[int]):
    """The signature of a handle. Whatever sends it iterates over it or pickles it. If it is collected before that, the
    handle is appended to `unsent`."""

    __slots__ = ("_handle", "_unsent")

    def __init__(self, content: bytes, unsent: deque[ObjectHandle], handle: ObjectHandle) -> None:
        super().__init__(content)
        self._unsent: deque[ObjectHandle] | None = unsent
        self._handle = handle

    def __iter__(self) -> Iterator[int]:
        self._unsent = None
        return super().__iter__()

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[list[int]], tuple[list[int]]]:
        return list, (list(self),)

    def __del__(self) -> None:
        if self._unsent is not None:
            self._unsent.append(self._handle)


class WaitingRequests:
    """vLLM's receiver cache in the engine core: holds a lease on each object of a request until the request is sent to
    the workers, or is dropped."""

    def __init__(self) -> None:
        """Attach to the store of the frontend, as workers do. Raise StoreError."""
        self._get_handle = import_module(USER)._get_shm_handle
        self._missing = import_module(CACHES).MultiModalCacheMissError
        self._item = _waiting_item(import_module("vllm.multimodal.inputs").MultiModalKwargsItem)
        self._store = ShmObjectStore.attach(
            _label(import_module("vllm.envs").VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME), writer=True
        )

    def get_and_update_features(self, features: list[Any]) -> list[Any]:
        """Lease the objects of a request. Raise MultiModalCacheMissError, which ends the request with an error that
        clients may retry, if any of them is gone."""
        attachment = self._store.attachment
        missing = []
        for feature in features:
            handle = feature.data and self._get_handle(feature.data)
            if not handle:
                continue
            address, monotonic_id, signature = handle
            list(signature)  # in the frontend's process: it has arrived
            object_handle = _find(attachment, address, monotonic_id)
            lease = None if object_handle is None else attachment.lease(object_handle.slot, object_handle.sequence)
            if lease is None:
                missing.append(feature.mm_hash or feature.identifier)
            else:
                feature.data = self._item(feature.data, attachment, lease)
        if missing:
            raise self._missing(missing)
        return features

    def clear_cache(self) -> None:
        """Do nothing: the frontend clears the store."""


def _waiting_item(plain: Any) -> Any:
    """Return a class of items with a lease, given vLLM's class of items."""

    class WaitingItem(plain):  # type: ignore[misc]
        """An item with a lease on its object. When it is pickled for the workers, or collected, the object counts as
        used, which leaves the workers time to read it, and the lease ends."""

        def __init__(self, item: Any, attachment: StoreAttachment, lease: ObjectLease) -> None:
            self._attachment = attachment
            self._lease: ObjectLease | None = lease
            super().__init__(item)

        def _end(self) -> None:
            lease, self._lease = self._lease, None
            if lease is not None:
                self._attachment.tables.used[lease.slot] = time.monotonic_ns()

        def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, tuple[dict[str, Any]]]:
            self._end()
            return plain, (dict(self),)

        def __del__(self) -> None:
            self._end()

    return WaitingItem


def _find(attachment: StoreAttachment, address: int, monotonic_id: int) -> ObjectHandle | None:
    """Return the handle of an object; None if it is gone."""
    tables = attachment.tables
    if 0 <= monotonic_id < 1 << 48:
        ready_word = monotonic_id << STATE_BITS | READY
        for slot in (tables.control[: tables.used_slots()] == ready_word).nonzero()[0].tolist():
            if int(tables.offset[slot]) == address:
                return ObjectHandle(attachment.number, slot, monotonic_id)
    return None


def _label(name: str) -> str:
    return _NO_NAME.sub("_", name)


def _modified(address: int, monotonic_id: int) -> ValueError:
    return ValueError(f"Data for address:id '{address}:{monotonic_id}' has been modified or is invalid.")
