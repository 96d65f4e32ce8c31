"""Paged caches that the data plane copies from and to by itself.

The engine exports its memory once, and names the blocks to copy in each request.

    tensors = [exported(runtime, address, "bfloat16", shape, stride) for address in layers]
    layout, block_bytes = chunk_layout(tensors, tokens_per_block=16)
    client = attach(socket, [Space(model="llama", layout=layout, block_bytes=block_bytes)])
    client.register_cache(tensors, tokens_per_block=16)
    store = client.store_from(keys, blocks, event=computed, tenant=salt)
    load = client.load_into(keys, blocks)
    load.wait(1.0)                     # until the load ends, the engine must not touch those blocks
    load.ended.blocks                  # chunks that are in the engine's cache now

Copies run in the data plane, behind the engine's event, concurrently with all other work of the client. A cache is
registered again automatically when the client attaches again. A copy whose connection is lost stays under way until it
is certain that nothing touches the engine's blocks any more: either the data plane's process is gone, or the data plane
confirms it.
"""

from __future__ import annotations

import os
import select
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from dataplane.client import checks
from dataplane.client.engine_memory import CacheTensor, HostPool
from dataplane.client.link import EngineLink
from dataplane.client.peer import Process
from dataplane.devices.chunks import TensorsRefused, tensor_group
from dataplane.devices.paged import block_axis
from dataplane.devices.runtime import DeviceEvent
from dataplane.protocol import engine as wire
from dataplane.protocol.codec import encode
from dataplane.protocol.codes import Code, code_of
from dataplane.protocol.layout import U64

REGISTER_S = 30.0
"""Seconds that a registration may take: the first cache makes the data plane load the device's runtime."""
LOOK_S = 0.005
MAX_BLOCK_NUMBER = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Outcome of a copy."""

    blocks: int
    """Blocks that every reader can see now (store), or chunks that are in the engine's cache now (load)."""
    code: Code | None = None
    """Reason for a failure, or None on success. A failed load leaves its blocks undefined."""
    message: str = ""


class Copy:
    """One store or load.

    While it is under way, the engine must not write the blocks of a store, and must not touch the blocks of a load.
    """

    def __init__(self, driven: DrivenCopies, keys: int) -> None:
        self._driven = driven
        self.outcomes: npt.NDArray[np.uint8] = np.full(keys, int(Code.UNAVAILABLE), np.uint8)
        """For a store: a `ReserveOutcome` or a `Code` for each key; keys with the outcome WRITE are being copied."""
        self.hits = 0
        """For a load: number of leading chunks that are copied. The blocks beyond them are left unchanged."""
        self.ended: CopyResult | None = None
        """Result, or None while the copy is under way."""
        self.attachment = 0
        self.plane: Process | None = None

    def end(self, blocks: int, code: Code | None = None, message: str = "") -> None:
        if self.ended is None:
            self.ended = CopyResult(blocks, code, message)

    def refuse(self, code: Code, message: str = "") -> None:
        """End a copy that was never started."""
        self.outcomes[:] = int(code)
        self.end(0, code, message)

    def poll(self) -> bool:
        """Return whether the copy has ended, without waiting."""
        if self.ended is None:
            self._driven.look()
        return self.ended is not None

    def abandon(self) -> None:
        """Give up a store: if it has not ended, it is never published, and the engine may change its blocks.

        Disconnects from the data plane, which then publishes nothing for this connection, even if it hangs now and
        continues later. A load cannot be given up, because the data plane may still write.
        """
        self._driven.abandon(self)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the copy has ended; return False on time-out. Other threads can use the client meanwhile."""
        deadline = time.monotonic() + timeout_s
        while not self.poll():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._driven.pause(min(left, LOOK_S))
        return True


@dataclass(eq=False, slots=True)
class _Registered:
    """A cache with all that is needed to register it again."""

    message: wire.RegisterCache | wire.RegisterHostPool
    blocks: int
    blocks_per_chunk: int
    fds: tuple[int, ...] = ()
    """Duplicates of the file descriptors of a host pool."""
    number: int = 0
    attachment: int = 0
    """Attachment of the client in which `number` is valid."""

    def close(self) -> None:
        """Close the file descriptors."""
        fds, self.fds = self.fds, ()
        for fd in fds:
            os.close(fd)


class DrivenCopies:
    """Copies of one client. Use them through `Client`."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self._closed = False
        self._caches: dict[int, _Registered] = {}
        """Registered caches by the position of their space."""
        self._under_way: dict[int, Copy] = {}
        """Copies by request number."""
        self._registering: dict[int, tuple[_Registered, int]] = {}
        """Requested registrations, with the attachment in which they were requested, by request number."""
        receive = weakref.WeakMethod(self.receive)
        link.on_copy = lambda answer: (found := receive()) is not None and found(answer)

    # ---- caches

    def register(
        self, tensors: Sequence[CacheTensor], space: int, tokens_per_block: int, chunk_tokens: int
    ) -> Code | None:
        """Implement `Client.register_cache`."""
        described_tensors = [tensor.tensor for tensor in tensors]
        try:
            group = tensor_group(described_tensors, tokens_per_block, chunk_tokens)
        except TensorsRefused as error:
            raise ValueError(f"{error.field}: {error.message}") from None
        devices = sorted({tensor.handle.device_uuid for tensor in tensors})
        if len(devices) != 1:
            raise ValueError(f"expected tensors of one device, got {', '.join(devices)}")
        bodies = list(dict.fromkeys(tensor.handle.body for tensor in tensors))
        described = [
            wire.TensorDescription(
                bodies.index(each.handle.body),
                each.handle.offset,
                each.handle.nbytes,
                each.dtype,
                list(each.shape),
                list(each.stride),
            )
            for each in tensors
        ]
        message = wire.RegisterCache(0, 0, devices[0], bodies, described, tokens_per_block)
        size = len(encode(message))
        if size > wire.MAX_DATAGRAM_BYTES - 32:
            raise ValueError(
                f"expected a registration of at most {wire.MAX_DATAGRAM_BYTES} bytes, got {size}: fewer tensors"
            )
        with self._link.lock:
            self.unregister(space)
            blocks = min(each.shape[block_axis(each.shape)] for each in tensors)
            return self._register(space, _Registered(message, blocks, group.blocks_per_chunk), REGISTER_S)

    def register_host_pool(self, pool: HostPool, space: int) -> Code | None:
        """Implement `Client.register_host_pool`."""
        sizes = [os.fstat(fd).st_size for fd in pool.fds]
        if not 1 <= len(sizes) <= wire.MAX_HOST_FILES:
            raise ValueError(f"fds: expected 1 to {wire.MAX_HOST_FILES} memfds, got {len(sizes)}")
        if not 1 <= pool.pages <= MAX_BLOCK_NUMBER:
            raise ValueError(f"pages: expected 1 to {MAX_BLOCK_NUMBER}, got {pool.pages}")
        message = wire.RegisterHostPool(0, 0, sizes, list(pool.pieces), pool.pages)
        if len(encode(message)) > wire.MAX_DATAGRAM_BYTES - 32:
            raise ValueError(f"pieces: {len(pool.pieces)} are too many for one message")
        with self._link.lock:
            self.unregister(space)
            known = _Registered(message, pool.pages, 1)
            known.fds = tuple(os.dup(fd) for fd in pool.fds)
            return self._register(space, known, 0.0)

    def _register(self, space: int, known: _Registered, timeout_s: float) -> Code | None:
        self._caches[space] = known
        if self._closed:
            known.close()
        ready = self._ready(space, timeout_s)
        return ready if isinstance(ready, Code) else None

    def unregister(self, space: int) -> None:
        """Implement `Client.unregister_cache`."""
        with self._link.lock:
            known = self._caches.pop(space, None)
            if known is not None:
                known.close()
            if known is not None and known.number and known.attachment == self._link.attachments:
                number = known.number
                self._link.ask(lambda at: wire.UnregisterCache(at, number), checks.answers(wire.CacheUnregistered))

    def _ready(self, space: int, timeout_s: float) -> _Registered | Code:
        """Return a cache that the current data plane knows, or the reason why there is none.

        Registers the cache again if needed. Waits for `timeout_s` or the client's time-out, whichever is longer. A
        late answer takes effect when it arrives.
        """
        known = self._caches.get(space)
        if known is None:  # another thread unregistered the cache
            return Code.UNAVAILABLE
        self._link.maintain()
        attachment = self._link.attachment
        if attachment is None or not self._link.attached:
            return Code.UNAVAILABLE
        if known.number and known.attachment == self._link.attachments:
            return known
        attachments, number, message = self._link.attachments, attachment.spaces[space], known.message
        if known.fds and not self._link.terms.host_pools:
            return Code.UNSUPPORTED

        def make(at: int) -> wire.RegisterCache | wire.RegisterHostPool:
            self._registering = {each: sent for each, sent in self._registering.items() if sent[1] == attachments}
            self._registering[at] = known, attachments
            return msgspec.structs.replace(message, id=at, space=number)

        answer = self._link.ask(make, checks.answers(wire.CacheRegistered), timeout_s, known.fds)
        if isinstance(answer, Code):
            return answer
        self.receive(answer)
        if isinstance(answer, wire.Refused):
            self._link.emit_refused("register_refused", answer)
            return code_of(answer.code)
        if not known.number:
            self._link.protocol_failed("registered a cache of other blocks")
            return Code.UNAVAILABLE
        return known

    def _registered(self, known: _Registered, attachment: int, answer: wire.CacheRegistered) -> None:
        known.number = 0
        if attachment != self._link.attachments or known not in self._caches.values():
            return
        if (answer.blocks, answer.blocks_per_chunk) == (known.blocks, known.blocks_per_chunk):
            known.number, known.attachment = answer.cache, attachment
        # The data plane answers once every copy for an earlier connection of this process has ended.
        for request, copy in list(self._under_way.items()):
            if copy.attachment < attachment:
                self._end(request, 0, Code.UNAVAILABLE, "the connection was lost")

    # ---- copies

    def store(
        self,
        keys: U64,
        blocks: Sequence[int] | npt.NDArray[np.integer],
        event: DeviceEvent | bytes | None,
        tenant: str,
        space: int,
        parent: bytes,
        *,
        checksums: bool,
    ) -> Copy:
        """Implement `Client.store_from`."""
        packed, handle = self._packed(keys, blocks, event, space, whole=True)
        return self._begin(
            space,
            len(keys),
            lambda at, cache: wire.StoreFrom(at, cache, tenant, keys.tobytes(), packed, handle, parent, checksums),
            checks.store_begun(len(keys)),
        )

    def load(
        self,
        keys: U64,
        blocks: Sequence[int] | npt.NDArray[np.integer],
        event: DeviceEvent | bytes | None,
        space: int,
        skip_blocks: int,
    ) -> Copy:
        """Implement `Client.load_into`."""
        packed, handle = self._packed(keys, blocks, event, space, whole=False)
        if not 0 <= skip_blocks <= len(blocks):
            raise ValueError(f"expected skip_blocks from 0 to {len(blocks)}, got {skip_blocks}")
        return self._begin(
            space,
            len(keys),
            lambda at, cache: wire.LoadInto(at, cache, keys.tobytes(), packed, handle, skip_blocks),
            checks.load_begun(len(keys)),
        )

    def _packed(
        self,
        keys: U64,
        blocks: Sequence[int] | npt.NDArray[np.integer],
        event: DeviceEvent | bytes | None,
        space: int,
        *,
        whole: bool,
    ) -> tuple[bytes, bytes]:
        """Check the arguments of a copy. Return the packed block numbers and the event's handle.

        With `whole`, the blocks must fill whole chunks. Raises ValueError.
        """
        known = self._caches.get(space)
        if known is None:
            raise ValueError(f"no cache is registered for the space at position {space}")
        expected = len(keys) * known.blocks_per_chunk
        least = expected if whole else expected - known.blocks_per_chunk + 1
        if not 1 <= len(keys) <= wire.MAX_KEYS_PER_REQUEST or not least <= len(blocks) <= expected:
            raise ValueError(
                f"expected 1 to {wire.MAX_KEYS_PER_REQUEST} keys with {known.blocks_per_chunk} blocks each, "
                f"got {len(keys)} keys and {len(blocks)} blocks"
            )
        numbers = np.asarray(blocks, np.int64)
        if not 0 <= int(numbers.min()) <= int(numbers.max()) < min(known.blocks, MAX_BLOCK_NUMBER):
            raise ValueError(
                f"expected blocks from 0 to {known.blocks - 1}, got {int(numbers.min())} to {int(numbers.max())}"
            )
        packed = numbers.astype("<u4").tobytes()
        most = wire.MAX_DATAGRAM_BYTES - 1024
        if keys.nbytes + len(packed) > most:
            raise ValueError(f"expected keys and blocks of at most {most} bytes, got {keys.nbytes + len(packed)}")
        handle = b"" if event is None else event if isinstance(event, bytes) else event.export()
        if len(handle) not in (0, wire.HANDLE_BYTES):
            raise ValueError(f"expected an event of {wire.HANDLE_BYTES} bytes, got {len(handle)}")
        return packed, handle

    def _begin(
        self, space: int, keys: int, make: Callable[[int, int], wire.StoreFrom | wire.LoadInto], check: checks.Check
    ) -> Copy:
        copy = Copy(self, keys)
        with self._link.lock:
            ready = self._ready(space, 0.0)
            if isinstance(ready, Code):
                copy.refuse(ready)
                return copy
            copy.attachment, copy.plane = self._link.attachments, self._link.plane
            sent: list[int] = []

            def request(at: int) -> wire.StoreFrom | wire.LoadInto:
                sent.append(at)
                self._under_way[at] = copy
                return make(at, ready.number)

            answer = self._link.ask(request, check)
            if isinstance(answer, Code):
                if not sent:  # the request was not sent
                    copy.refuse(answer)
            else:
                self.receive(answer)
                if isinstance(answer, wire.Refused):
                    self._link.emit_refused("copy_refused", answer)
        return copy

    def receive(self, answer: wire.EngineReply) -> bool:
        """Handle an answer, including a late one. Return whether it answers a request of this object."""
        registering = self._registering.pop(answer.id, None)
        if registering is not None:
            if isinstance(answer, wire.CacheRegistered):
                self._registered(*registering, answer)
            return True
        if answer.id not in self._under_way:
            return False
        self._on_answer(answer.id, answer)
        return True

    def _on_answer(self, request: int, answer: wire.EngineReply) -> None:
        copy = self._under_way[request]
        if isinstance(answer, wire.StoreBegun):
            if len(answer.outcomes) == len(copy.outcomes):
                copy.outcomes = np.frombuffer(answer.outcomes, np.uint8)
            if not answer.copy:
                self._end(request, 0)
        elif isinstance(answer, wire.LoadBegun):
            copy.hits = max(0, min(answer.hits, len(copy.outcomes)))
            if not answer.copy:
                self._end(request, 0)
        elif isinstance(answer, wire.CopyEnded):
            code = code_of(answer.code) if answer.code else None
            self._end(request, max(0, min(answer.blocks, len(copy.outcomes))), code, answer.message)
        elif isinstance(answer, wire.Refused):
            copy.refuse(code_of(answer.code), answer.message)
            self._end(request, 0)

    def _end(self, request: int, blocks: int, code: Code | None = None, message: str = "") -> None:
        self._under_way.pop(request).end(blocks, code, message)

    def look(self) -> None:
        """Process answers of the data plane, and end copies that were lost."""
        with self._link.lock:
            self._link.receive()
            lost = [
                (request, copy)
                for request, copy in self._under_way.items()
                if not self._link.attached or copy.attachment != self._link.attachments
            ]
            for request, copy in lost:
                if copy.plane is not None and copy.plane.gone:
                    self._end(request, 0, Code.UNAVAILABLE, "the data plane is gone")
            if any(request in self._under_way for request, _ in lost):
                for space in list(self._caches)[:1]:
                    self._ready(space, 0.0)

    def abandon(self, copy: Copy) -> None:
        """Implement `Copy.abandon`."""
        with self._link.lock:
            self._link.receive()
            requests = [request for request, each in self._under_way.items() if each is copy]
            if requests and self._link.attached and copy.attachment == self._link.attachments:
                self._link.drop("a store did not end in time")
            for request in requests:
                self._end(request, 0, Code.TIMEOUT, "the store did not end in time")

    def pause(self, seconds: float) -> None:
        """Wait until an answer arrives, at most `seconds`."""
        fd = self._link.fileno()
        waiting = select.poll()
        if fd is not None:
            waiting.register(fd, select.POLLIN)
        waiting.poll(1000 * seconds)

    def close(self) -> None:
        """Close the file descriptors of host pools. Later copies and registrations are refused."""
        self._closed = True
        for known in self._caches.values():
            known.close()

    def left(self) -> None:
        """End all copies: the data plane has confirmed that nothing runs for this process."""
        for request in list(self._under_way):
            self._end(request, 0, Code.UNAVAILABLE, "the client was closed")
