"""A process in place of the worker of S3 tiers: it executes the statement in LARDER_TEST_STATEMENT for each message."""

import mmap
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.s3.messages import (
    RECEIVE_BYTES,
    CancelRequest,
    DeleteObjects,
    FrameReader,
    OpenBucket,
    RequestFault,
    StoreRequestDone,
    StoreRequestFault,
    frame,
    requests,
)

USED = (CancelRequest, DeleteObjects, OpenBucket, os, signal)
"""What statements use."""
sock, memory_fd = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])


def messages() -> Iterator[Any]:
    reader = FrameReader(requests)
    while received := sock.recv(RECEIVE_BYTES):
        yield from reader.feed(received)


def fill(message: Any, byte: bytes) -> None:
    mmap.mmap(memory_fd, 0)[message.start : message.start + message.size] = byte * message.size


def done(number: int, size: int = 0) -> None:
    sock.sendall(frame(StoreRequestDone(number, size)))


def failed(number: int, sentence: str = "") -> None:
    sock.sendall(frame(StoreRequestFault(number, RequestFault(Outcome.FAILED, sentence))))


lines = "".join(f"    {line}\n" for line in os.environ["LARDER_TEST_STATEMENT"].strip().splitlines())
exec(f"for message in messages():\n{lines}")
