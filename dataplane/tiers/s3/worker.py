"""The process that makes the requests of one tier. A socket is its only connection to the data plane.

obstore reads the whole body of a list and of an error, and reserves as much memory as the server's `Content-Length`
says. If the memory cannot be reserved, the process aborts. Because the process is separate and has a memory limit, a
hostile server can end only the requests of its own tier.
"""

import asyncio
import contextlib
import mmap
import os
import resource
import socket
import sys
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

import obstore
from obstore.exceptions import BaseError, GenericError, InvalidPathError
from obstore.store import ObjectStore, from_url

if TYPE_CHECKING:
    from obstore.store import RetryConfig

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.s3.errors import explain, is_beyond_end, refused_path
from dataplane.tiers.s3.messages import (
    NO_OTHER_HOST,
    RECEIVE_BYTES,
    CancelRequest,
    DeleteObjects,
    FrameError,
    FrameReader,
    GetObject,
    ListObjects,
    OpenBucket,
    PutObject,
    RequestFault,
    StoreRequest,
    StoreRequestDone,
    StoreRequestFault,
    frame,
    requests,
)

_ERRORS = (BaseError, OSError, ValueError)
"""Exceptions that a request raises. Some errors of obstore are built-in exceptions."""
_REQUEST_TIMEOUT = timedelta(minutes=5)
_MIN_RETRY_WAIT = timedelta(milliseconds=50)
_MAX_RETRY_WAIT = timedelta(seconds=1)
_MAX_READS = 5
_CHUNK_BYTES = 1 << 20
"""Bytes of a response that are copied to the shared memory at once. They fit in the cache of a core."""
_RELEASE_POLL_S = 0.001
_FIRST_KILLED = "1000"
"""Value of `oom_score_adj`: the kernel ends this process first when the machine has no memory left."""


class RequestLoop:
    """Makes requests, and sends their replies."""

    def __init__(self, sock: socket.socket, memory_fd: int) -> None:
        self._sock = sock
        self._memory_fd = memory_fd
        self._memory = mmap.mmap(memory_fd, 0)
        self._frames = FrameReader(requests)
        self._store: ObjectStore | RequestFault = RequestFault(Outcome.FAILED, "no bucket was named")
        self._tasks: dict[int, asyncio.Task[StoreRequestDone | StoreRequestFault]] = {}
        self._replies: list[bytes] = []
        self._loop = asyncio.new_event_loop()

    def run(self) -> None:
        """Make requests until the data plane closes the socket, or ends."""
        self._loop.add_reader(self._sock, self._receive)
        self._loop.run_forever()

    def _receive(self) -> None:
        try:
            received = self._sock.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
            messages = self._frames.feed(received)
        except BlockingIOError:
            return
        except (OSError, FrameError):
            received = b""
        if not received:
            os._exit(0)  # requests under way are given up
        for message in messages:
            self._begin(message)

    def _begin(self, message: OpenBucket | CancelRequest | StoreRequest) -> None:
        if isinstance(message, OpenBucket):
            self._store = _open(message)
        elif isinstance(message, CancelRequest):
            task = self._tasks.get(message.number)
            if task is not None:
                task.cancel()
        else:
            task = self._tasks[message.number] = self._loop.create_task(self._answer(message))
            task.add_done_callback(lambda done: self._ended(message.number, done))

    def _ended(self, number: int, task: asyncio.Task[StoreRequestDone | StoreRequestFault]) -> None:
        del self._tasks[number]
        if task.cancelled() or task.exception() is not None:  # such as a panic of the library
            reply: StoreRequestDone | StoreRequestFault = StoreRequestFault(number, RequestFault(Outcome.FAILED))
        else:
            reply = task.result()
        if not self._replies:
            self._loop.call_soon(self._send)
        self._replies.append(frame(reply))

    def _send(self) -> None:
        replies, self._replies = self._replies, []
        try:
            self._sock.sendall(b"".join(replies), socket.MSG_NOSIGNAL)
        except OSError:  # the data plane is gone
            os._exit(0)

    async def _answer(self, message: StoreRequest) -> StoreRequestDone | StoreRequestFault:
        store = self._store
        if isinstance(store, RequestFault):
            return StoreRequestFault(message.number, store)
        try:
            return await self._perform(store, message)
        except _ERRORS as error:
            return StoreRequestFault(message.number, explain(error))

    async def _perform(self, store: ObjectStore, message: StoreRequest) -> StoreRequestDone:
        size, objects = 0, list[tuple[str, int]]()
        match message:
            case GetObject():
                size = await _get(store, message, self._range(message))
            case PutObject():
                await _put(store, message, self._range(message))
            case DeleteObjects():
                await obstore.delete_async(store, message.paths)
            case ListObjects():
                page = obstore.list(store, message.prefix, offset=message.after or None, chunk_size=message.size)
                try:
                    metas: Sequence[Any] = await anext(aiter(page), [])
                except InvalidPathError as error:
                    return StoreRequestDone(message.number, unreadable=refused_path(error))
                objects = [(meta["path"], meta["size"]) for meta in metas]
            case _:
                assert_never(message)
        return StoreRequestDone(message.number, size, objects)

    def _range(self, message: GetObject | PutObject) -> memoryview:
        """Return the request's range of the shared memory."""
        end = message.start + message.size
        if end > len(self._memory):
            self._memory = mmap.mmap(self._memory_fd, 0)
        return memoryview(self._memory)[message.start : end]


async def _put(store: ObjectStore, message: PutObject, value: memoryview) -> None:
    attributes = {"Storage-Class": message.storage_class} if message.storage_class else None
    try:
        await obstore.put_async(store, message.path, value, attributes=attributes, use_multipart=False)
    finally:
        await _unused(value)


async def _unused(value: memoryview) -> None:
    """Wait until the library does not use the memory, which it may do shortly after a request was given up."""
    while True:
        try:
            value.release()
        except BufferError:
            await asyncio.sleep(_RELEASE_POLL_S)
        else:
            return


class _Part(NamedTuple):
    """What was read of a range of an object."""

    nbytes: int
    version: str | None
    size: int
    """Bytes of the whole object."""


async def _get(store: ObjectStore, message: GetObject, into: memoryview) -> int:
    """Read one version of an object. Return the number of bytes."""
    size, step = message.size, message.range_bytes
    ranges = [(start, min(start + step, size)) for start in range(0, size, step)]
    for _ in range(_MAX_READS):
        first, *later_parts = await _together(
            _read_range(store, message.path, ranges[0], into),
            *(_read_behind(store, message.path, byte_range, into) for byte_range in ranges[1:]),
        )
        needed = sum(start < first.size for start, _ in ranges[1:])
        parts = [first, *(part for part in later_parts if part is not None)]
        if len(parts) == 1 + needed and len({part.version for part in parts}) == 1:
            return sum(part.nbytes for part in parts)
    raise GenericError("the object was replaced while it was read")


async def _together(*reads: Coroutine[Any, Any, Any]) -> list[Any]:
    """Return the results of all reads. If one fails, raise its exception when all have ended."""
    if len(reads) == 1:
        return [await reads[0]]
    results = await asyncio.gather(*reads, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


async def _read_range(store: ObjectStore, path: str, part: tuple[int, int], into: memoryview) -> _Part:
    """Read exactly one range, because the response of a faulty server may be endless."""
    at, end = part
    response = await obstore.get_async(store, path, options={"range": part})
    async for data in response.stream(min_chunk_size=min(end - at, _CHUNK_BYTES)):
        if len(data) > end - at:
            raise GenericError(f"expected at most {part[1] - part[0]} bytes, got more")
        into[at : at + len(data)] = data
        at += len(data)
        if at == end:
            break
    return _Part(at - part[0], response.meta["e_tag"], response.meta["size"])


async def _read_behind(store: ObjectStore, path: str, part: tuple[int, int], into: memoryview) -> _Part | None:
    """Read a later range. Return None if the object ends before it, which is possible for an encoded block."""
    try:
        return await _read_range(store, path, part, into)
    except BaseError as error:
        if is_beyond_end(error):
            return None
        raise


def _open(message: OpenBucket) -> ObjectStore | RequestFault:
    options: dict[str, Any] = {
        "allow_http": message.allow_http,
        "connect_timeout": timedelta(seconds=message.connect_timeout_s),
        "timeout": _REQUEST_TIMEOUT,
    }
    if message.only_hosts:  # the library follows redirections, and sends a session token with them
        options |= {"proxy_url": f"http://{NO_OTHER_HOST}", "proxy_excludes": message.only_hosts}
    if message.root_certificate is not None:
        options["root_certificate"] = message.root_certificate
    retries: RetryConfig = {
        "max_retries": message.retries,
        "retry_timeout": _REQUEST_TIMEOUT,
        "backoff": {"init_backoff": _MIN_RETRY_WAIT, "max_backoff": _MAX_RETRY_WAIT, "base": 2},
    }
    open_store: Any = from_url  # its types differ by the scheme of the URL, which is known at run time
    try:
        store: ObjectStore = open_store(
            message.url, config=message.config, client_options=options, retry_config=retries
        )
    except _ERRORS as error:
        fault = explain(error)
        return fault._replace(sentence=fault.sentence or "the parameters are not valid for this kind of url")
    return store


def main() -> None:
    """Make the requests that arrive at a socket. The arguments are the file descriptors of the socket and of the shared
    memory, and the number of bytes of memory that the process may write to."""
    descriptor, memory_fd, limit = map(int, sys.argv[1:])
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the memory has credentials
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_KILLED)
    with socket.socket(fileno=descriptor) as sock:
        RequestLoop(sock, memory_fd).run()


if __name__ == "__main__":
    main()
