"""A queue of messages in shared memory: one writer, many readers.

    queue = MessageQueue("tokens")
    queue.handle()                          # send it to the readers: it can be pickled
    queue.put({"step": 1, "ids": array}, timeout=1.0)

    reader = QueueReader(handle)            # in another process of the same user
    reader.get(timeout=1.0)                 # or: async for message in reader

A process that dies blocks no other process: the writer drops dead readers, readers of a dead writer raise WriterGone,
and `MessageQueue.take_over` makes another process the writer. The memory has no name, and is freed when its last
process ends. A message is read whole or not at all.

`ShmRingBuffer`, `ShmRingWriter` and `ShmRingReader` carry bytes; `layout` describes the protocol.
"""

from dataplane.ipc.queue.errors import (
    CorruptMessage,
    MessageLost,
    MessageTooLarge,
    QueueCancelled,
    QueueError,
    QueueFull,
    QueueGone,
    ReaderGone,
    UntrustedWriter,
    WriterAlive,
    WriterGone,
)
from dataplane.ipc.queue.message_queue import MessageQueue, QueueReader
from dataplane.ipc.queue.reader import ShmRingReader
from dataplane.ipc.queue.ring import QueueHandle, ShmRingBuffer
from dataplane.ipc.queue.writer import ShmRingWriter

__all__ = [
    "MessageQueue",
    "QueueReader",
    "QueueHandle",
    "ShmRingBuffer",
    "ShmRingReader",
    "ShmRingWriter",
    "CorruptMessage",
    "MessageLost",
    "MessageTooLarge",
    "QueueCancelled",
    "QueueError",
    "QueueFull",
    "QueueGone",
    "ReaderGone",
    "UntrustedWriter",
    "WriterAlive",
    "WriterGone",
]
