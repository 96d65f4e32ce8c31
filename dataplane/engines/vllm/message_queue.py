"""Larder's message queue in place of vLLM's `shm_broadcast.MessageQueue`, between the processes of one vLLM.

`dataplane.engines.vllm.shim` installs it in each process of vLLM. Messages are pickled, as vLLM's are, and travel in
shared memory of one user alone. A queue with readers on other nodes, or with vLLM's tensor arena, stays vLLM's own.
"""

from __future__ import annotations

import logging
import pickle
import sys
import threading
import time
from importlib import import_module
from typing import Any

import msgspec

from dataplane.ipc.arguments import deadline_of
from dataplane.ipc.queue import MessageQueue, QueueCancelled, QueueHandle, QueueReader, WriterGone

MAX_CAPACITY_BYTES = 32 << 20
"""Largest ring. A message of more than a quarter of it gets memory of its own, which is freed once it is read."""
MODULE = "vllm.distributed.device_communicators.shm_broadcast"
WARN_S = 60.0
SHUTDOWN_S = 2.0
"""Longest wait for vLLM to shut a reader down after its writer has ended; vLLM notices the end by itself."""
_log = logging.getLogger("vllm.larder")


class VllmQueueHandle(msgspec.Struct, frozen=True):
    """The handle that vLLM sends to the readers of a queue."""

    local_reader_ranks: list[int]
    queue: QueueHandle


class VllmMessageQueue:
    """The interface of vLLM's class. Arguments that Larder's queue does not need are accepted and not used."""

    original: Any = None
    """vLLM's class; None before `install`. Its methods call each other through the name that `install` replaces."""

    def __new__(
        cls,
        n_reader: int | None = None,
        n_local_reader: int | None = None,
        local_reader_ranks: list[int] | None = None,
        max_chunk_bytes: int = 24 << 20,
        max_chunks: int = 10,
        connect_ip: str | None = None,
        enable_shm_tensor_arena: bool = False,
    ) -> Any:
        """Return vLLM's queue if there are readers on other nodes or vLLM's tensor arena is wanted, and an empty one of
        vLLM's if there are no arguments, as its `create_from_handle` makes it."""
        if n_reader is None:
            return object.__new__(cls.original)
        if n_reader != n_local_reader or enable_shm_tensor_arena:
            return cls.original(
                n_reader,
                n_local_reader,
                local_reader_ranks,
                max_chunk_bytes,
                max_chunks,
                connect_ip,
                enable_shm_tensor_arena,
            )
        return super().__new__(cls)

    def __init__(
        self,
        n_reader: int,
        n_local_reader: int,
        local_reader_ranks: list[int] | None = None,
        max_chunk_bytes: int = 24 << 20,
        max_chunks: int = 10,
        connect_ip: str | None = None,
        enable_shm_tensor_arena: bool = False,
    ) -> None:
        """Create a queue as its writer. `local_reader_ranks`: the ranks of the readers; None for 0, 1, …"""
        ranks = list(range(n_local_reader)) if local_reader_ranks is None else list(local_reader_ranks)
        if len(ranks) != n_local_reader:
            raise ValueError(f"local_reader_ranks: expected {n_local_reader} ranks, not {ranks}")
        queue = MessageQueue(
            "vllm",
            readers=n_local_reader,
            max_readers=max(n_local_reader, 1),
            capacity_bytes=min(max_chunk_bytes * max_chunks, MAX_CAPACITY_BYTES),
            trusted=True,
            reducers=_reducers(),
        )
        self._start(VllmQueueHandle(ranks, queue.handle()), queue, None)
        self.n_local_reader = n_local_reader
        self._is_writer = True

    def _start(self, handle: VllmQueueHandle, queue: MessageQueue | None, reader: QueueReader | None) -> None:
        self.n_local_reader = 0
        self.n_remote_reader = 0
        self.local_reader_rank = -1
        self.handle = handle
        self._queue = queue
        self._reader = reader
        self.shutting_down = False
        self._ended = threading.Event()
        self._is_writer = self._is_local_reader = self._is_remote_reader = False

    @staticmethod
    def create_from_handle(handle: Any, rank: int) -> Any:
        """Return a reader of a queue."""
        if not isinstance(handle, VllmQueueHandle):
            return VllmMessageQueue.original.create_from_handle(handle, rank)
        self = object.__new__(VllmMessageQueue)
        slot = handle.local_reader_ranks.index(rank)
        self._start(handle, None, QueueReader(handle.queue, slot=slot, trusted=True))
        self.local_reader_rank = slot
        self._is_local_reader = True
        return self

    @staticmethod
    def create_from_process_group(*args: Any, **kwargs: Any) -> Any:
        """vLLM's own exchange of handles, which makes queues of this class."""
        return VllmMessageQueue.original.create_from_process_group(*args, **kwargs)

    @staticmethod
    def create_from_process_group_single_reader(*args: Any, **kwargs: Any) -> Any:
        """vLLM's own exchange of handles, which makes queues of this class."""
        return VllmMessageQueue.original.create_from_process_group_single_reader(*args, **kwargs)

    @staticmethod
    def recv(socket: Any, timeout: float | None) -> Any:
        """Receive a message of one of vLLM's own queues, which call this method by the name of the class."""
        return VllmMessageQueue.original.recv(socket, timeout)

    def export_handle(self) -> VllmQueueHandle:
        """Return what readers pass to `create_from_handle`."""
        return self.handle

    def wait_until_ready(self) -> None:
        """Wait until all readers have joined; the writer and every reader call it."""
        if self._queue is not None:
            self._queue.wait_for_readers(self.n_local_reader)
        else:
            self._joined().wait_until_ready()

    def enqueue(self, obj: Any, timeout: float | None = None) -> None:
        """Send a message. Raises TimeoutError after `timeout` seconds, and RuntimeError for a wait after `shutdown`."""
        if self._queue is None:
            raise RuntimeError("only the writer of a queue can enqueue")
        deadline = _deadline(timeout)
        warn_s, text = _long_wait()
        while True:
            try:
                self._queue.put(obj, _remaining_s(deadline, warn_s))
            except QueueCancelled:
                raise RuntimeError("cancelled") from None
            except TimeoutError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
                _log.info(text, warn_s)
            else:
                return

    def dequeue(self, timeout: float | None = None, indefinite: bool = False) -> Any:
        """Return the next message.

        Raises TimeoutError after `timeout` seconds, and RuntimeError after `shutdown` or when the writer has ended.
        `indefinite`: a long wait is usual, and is not logged.
        """
        reader = self._joined()
        deadline = _deadline(timeout)
        warn_s, text = _long_wait()
        while True:
            if self.shutting_down:
                timeout_s = 0.0
            else:
                timeout_s = _remaining_s(deadline, warn_s)
            try:
                return reader.get(timeout_s)
            except QueueCancelled:
                raise RuntimeError("cancelled") from None
            except WriterGone as error:
                self._ended.wait(SHUTDOWN_S)
                raise RuntimeError("cancelled" if self.shutting_down else str(error)) from None
            except TimeoutError:
                if self.shutting_down:
                    raise RuntimeError("cancelled") from None
                if deadline is not None and time.monotonic() >= deadline:
                    raise
                if not indefinite:
                    _log.info(text, warn_s)

    def broadcast_object(self, obj: Any = None) -> Any:
        """Send `obj` as the writer and return it, or return the next message as a reader."""
        if self._queue is not None:
            self.enqueue(obj)
            return obj
        return self.dequeue()

    def shutdown(self) -> None:
        """End waits of this process."""
        self.shutting_down = True
        self._ended.set()
        for side in (self._queue, self._reader):
            if side is not None:
                side.cancel()

    def _joined(self) -> QueueReader:
        if self._reader is None:
            raise RuntimeError("only the readers of a queue can dequeue")
        return self._reader


def _long_wait() -> tuple[float, str]:
    """Return the seconds after which vLLM logs a wait (`VLLM_RINGBUFFER_WARNING_INTERVAL`), and its message."""
    vllm = sys.modules.get(MODULE)
    return (
        getattr(vllm, "VLLM_RINGBUFFER_WARNING_INTERVAL", WARN_S),
        getattr(vllm, "LONG_WAIT_TIME_LOG_MSG", "the message queue has waited for %d seconds"),
    )


def _deadline(timeout: float | None) -> float | None:
    """Return the end of a wait. vLLM passes the rest of a longer wait, which may be negative. Raises ValueError for
    NaN, and TypeError."""
    return deadline_of(timeout) if timeout is None or not timeout < 0 else time.monotonic()


def _remaining_s(deadline: float | None, most_s: float) -> float:
    return most_s if deadline is None else min(most_s, max(deadline - time.monotonic(), 0.0))


def _reducers() -> dict[type, Any]:
    import torch

    return {torch.Tensor: _reduce_tensor}


def _reduce_tensor(tensor: Any) -> Any:
    """Pickle a plain tensor in host memory as a buffer; leave others to torch."""
    import torch

    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.requires_grad
    if not plain or tensor.is_conj() or tensor.is_neg():
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(content), tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _tensor(content: Any, shape: tuple[int, ...], dtype: str) -> Any:
    import torch

    view = memoryview(content)
    if not view.nbytes:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    writable = bytearray(view) if view.readonly else content
    return torch.frombuffer(writable, dtype=torch.uint8).view(getattr(torch, dtype)).view(shape)


def install() -> None:
    """Replace vLLM's class in this process. vLLM may call it more than once."""
    if VllmMessageQueue.original is not None:
        return
    VllmMessageQueue.original = original = import_module(MODULE).MessageQueue
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("MessageQueue") is original:
            module.MessageQueue = VllmMessageQueue  # type: ignore[attr-defined]
    _log.info("vLLM uses Larder's message queue")
