"""Errors of message queues. A wait that reaches its deadline raises TimeoutError."""


class QueueError(Exception):
    """Base of the errors of message queues."""


class WriterGone(QueueError):
    """The writer exited or closed the queue, and every message that it published has been read."""


class WriterAlive(QueueError):
    """The queue has a writer that runs; a queue has one writer."""


class ReaderGone(QueueError):
    """An expected reader exited before it joined."""


class QueueGone(QueueError):
    """No running process holds the memory of the queue."""


class QueueFull(QueueError):
    """The queue has no free reader slot, or the slot belongs to another reader."""


class MessageTooLarge(QueueError):
    """The message is larger than a queue may carry."""


class MessageLost(QueueError):
    """Messages can no longer be read: their writer exited, or the reader was too slow for a queue that drops. The
    next call continues with the next message."""


class CorruptMessage(QueueError):
    """A message has a wrong position or checksum, or cannot be decoded. The next call reads the next message."""


class UntrustedWriter(QueueError):
    """The messages are pickled, and this reader did not declare the writer as trusted."""


class QueueCancelled(QueueError):
    """`cancel` or `close` ended the wait."""
