"""A data plane's connection to the holder of its memory."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import structlog

from dataplane.base.child_command import standalone_command
from dataplane.holding import holder
from dataplane.holding.holder import MAX_FDS_PER_DATAGRAM, VERSION, BadMessage, Key, Message, receive_memory
from dataplane.holding.requests import (
    ANSWER_TIMEOUT_S,
    PROGRAM,
    HolderFailed,
    HolderSilent,
    answer_to,
    connect,
    signal_holders,
)

SILENT_S = 8.0
"""Seconds for which a holder that does not answer is tried again."""
BUSY_S = 5.0
"""Seconds within which the connection of a killed predecessor ends."""
EXTERNAL_S = 30.0
"""Longest wait for a holder that another service or container runs."""
REPLACED_S = 10.0
"""Longest wait, at a stop, for a holder in place of one that was lost."""
RETRY_S = 0.1
RECONNECT_S = 2.0
"""Interval of attempts to replace a holder that was lost."""
AFTER_A_KILL_S = 60.0
"""Seconds for which memory is held after a kill if `keep_memory_s` is less: its data plane is started again."""
_NOT_NOW = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)
_NO_FILE = (-1, -1)

log = structlog.stdlib.get_logger()


class Holdable(Protocol):
    """An object that is duplicated for the holder: memory, or a gateway's socket."""

    @property
    def fd(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class HolderConnection:
    """A data plane's connection to the holder of its memory, from `take` to `end`. Without a folder, nothing is held.

    Only `take`, `stop` and `end` wait. When the holder ends, another one is started, or awaited if it is `external`.
    """

    def __init__(self, folder: Path | None = None, keep_s: float = 0.0, *, external: bool = False) -> None:
        self._folder = folder
        self._keep_s = keep_s
        self._external = external
        self._connection: socket.socket | None = None
        self._child = 0
        """Process id of a holder that this process started, until it has ended."""
        self._files: dict[Key, Holdable] = {}
        """All that the holder has once all messages are sent."""
        self._sent: dict[Key, tuple[int, int]] = {}
        """The file of each message, by device and inode."""
        self._unsent: deque[tuple[Message, Key | None, Holdable | None]] = deque()
        self._took = False
        self._listed = False
        self._serving: Message | None = None
        self._next_attempt = 0.0
        self._is_lost = False

    def take(self) -> tuple[list[tuple[str, int, int]], str]:
        """Become the writer. Return the memory that is held (kind, number, fd), which the caller owns, and why there is
        none if a holder does not hand it over."""
        if self._folder is None:
            return [], ""
        memory, failure = self._take_from_running(self._folder)
        self._took = bool(memory)
        if self._connection is None:
            self._start(self._folder)
        return memory, failure

    def _take_from_running(self, folder: Path) -> tuple[list[tuple[str, int, int]], str]:
        """Take the memory of a holder that runs. One that does not answer is tried again for SILENT_S; SIGCONT wakes
        one that was stopped."""
        began = time.monotonic()
        failure = ""
        while True:
            try:
                connection = connect(folder)
                if connection is None:
                    if not self._external or time.monotonic() - began > EXTERNAL_S:
                        break
                    time.sleep(RETRY_S)
                    continue
                try:
                    answer_to(connection, self._take_message(adopt=True))
                    memory = receive_memory(connection)
                except (OSError, BadMessage) as error:
                    connection.close()
                    raise HolderSilent(f"the holder of the memory does not answer: {error}") from None
                except BaseException:
                    connection.close()
                    raise
            except HolderFailed as error:
                failure = str(error)
                limit_s = SILENT_S if isinstance(error, HolderSilent) else BUSY_S
                if time.monotonic() - began < limit_s:
                    if isinstance(error, HolderSilent):
                        signal_holders(folder, signal.SIGCONT)
                    time.sleep(RETRY_S)
                    continue
                killed = signal_holders(
                    folder, signal.SIGKILL
                )  # it also holds the name of the gateway's memory
                log.warning(
                    "memory.not_taken",
                    reason=failure,
                    killed=killed,
                    effect="the start is cold: nothing is cached",
                )
                break
            connection.setblocking(False)
            self._connection = connection
            return memory, ""
        if self._external:
            log.warning(
                "holder.absent",
                waited_s=round(time.monotonic() - began),
                effect="a holder of this process is started: the cache ends with this container or service",
            )
        return [], failure

    def _take_message(self, *, adopt: bool) -> Message:
        keep_s = max(self._keep_s, AFTER_A_KILL_S)
        return {"do": "take", "version": VERSION, "keep_s": keep_s, "adopt": adopt}

    def _start(self, folder: Path) -> None:
        """Start a holder of this process, and begin to send it all files. It has its name at once: if this process is
        killed before the holder runs, the next one finds it."""
        try:
            given = holder.Folder(str(folder))
        except OSError as error:
            self._lost(f"it cannot be started: {error.strerror}")
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptors = (theirs.fileno(), given.lock, given.listener.fileno())
        with theirs:
            try:
                process = subprocess.Popen(
                    standalone_command(PROGRAM, str(folder.absolute()), "--given", *map(str, descriptors)),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # a pipe of this process would stay open
                    start_new_session=True,
                    pass_fds=descriptors,
                )
            except OSError as error:
                ours.close()
                given.remove_name()
                self._lost(f"it cannot be started: {error.strerror}")
                return
            finally:
                given.close()
        self._child, process.returncode = process.pid, 0  # it outlives this process, or `_reap` waits for it
        self._connected(ours)

    def _connected(self, connection: socket.socket) -> None:
        """Begin to send all files on a connection to a holder that has none of them."""
        connection.setblocking(False)
        self._connection = connection
        self._sent.clear()
        self._unsent = deque([(self._take_message(adopt=False), None, None)])
        files, self._files = self._files, {}
        for key, file in files.items():
            self.made(*key, file)
        if self._listed:
            self._queue({"do": "hold", "memory": [], "last": True})
        if self._serving is not None:
            self._queue(self._serving)
        self.flush()

    # ---- files

    def made(self, kind: str, number: int, file: Holdable) -> None:
        """Give the holder a duplicate of a descriptor, which stays open until `dropped`."""
        if self._folder is None:
            return
        key = kind, number
        if key in self._files:
            self.dropped(kind, number)
        self._files[key], self._sent[key] = file, _inode(file.fd)
        self._queue({"do": "hold", "memory": [[kind, number, file.nbytes]]}, key, file)

    def dropped(self, kind: str, number: int) -> None:
        """Make the holder close its duplicate."""
        key = kind, number
        if self._files.pop(key, None) is None:
            return
        self._sent.pop(key, None)
        before = len(self._unsent)
        self._unsent = deque(each for each in self._unsent if each[1] != key)
        if len(self._unsent) == before:
            self._queue({"do": "drop", "memory": [[kind, number]]})

    def list_all(self, files: Iterable[tuple[str, int, Holdable]]) -> None:
        """Make the holder hold exactly these files, with kind and number, instead of what it held before."""
        wanted = {(kind, number): file for kind, number, file in files}
        for key in list(self._files.keys() - wanted.keys()):
            self.dropped(*key)
        for key, file in wanted.items():
            if self._sent.get(key, _NO_FILE) != _inode(file.fd):
                self.made(*key, file)
        self._listed = True
        self._queue({"do": "hold", "memory": [], "last": True})

    # ---- the start and the end

    def serving(self, named_paths: list[str]) -> None:
        """Tell the holder that the start succeeded, and the names of the named segment, which it removes when it
        releases the memory."""
        self._serving = {"do": "serving", "named_paths": named_paths}
        self._queue(self._serving)

    def start_failed(self, *, because_of_memory: bool) -> None:
        """Tell the holder that this start ends before it serves. It keeps the memory that was there before."""
        if self._took:
            self._queue({"do": "failed" if because_of_memory else "leave"})
        else:
            self.release()

    def stop(self, blocks: int, nbytes: int) -> int:
        """Leave the memory to the holder for `keep_s`, and return its process id; 0 if nobody holds the memory."""
        message: Message = {"do": "stop", "keep_s": self._keep_s, "blocks": blocks, "bytes": nbytes}
        for key in [key for key in self._files if key[0] in holder.SOCKET_KINDS]:
            self.dropped(*key)  # they are closed by now, and would be sent to a holder in place of a lost one
        for _ in range(2):  # a holder that was lost is replaced, and one that was stopped is woken
            answer = self._finally(message)
            if answer is not None and "holding" in answer:
                return int(answer["holding"]["pid"])
            if self._folder is None:
                break
            self._lost("it does not answer")
            signal_holders(self._folder, signal.SIGCONT)
            deadline = time.monotonic() + REPLACED_S
            while self._connection is None and time.monotonic() < deadline:
                self._replace(self._folder)
                if self._connection is None:
                    time.sleep(RETRY_S)
        return 0

    def release(self) -> None:
        """Make the holder close all files: this process has marked its memory as released."""
        self._finally({"do": "release", "reason": "", "on_purpose": True})

    def end(self) -> None:
        """Close the connection, after all messages were sent."""
        self._finally(None)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _finally(self, message: Message | None) -> Message | None:
        """Send all messages, and this one, and wait for its answer. Return None if the holder does not answer."""
        if self._connection is None:
            return None
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        if message is not None:
            self._queue(message)
        while not self.is_current and time.monotonic() < deadline:
            time.sleep(RETRY_S / 10)
            self.flush()
        return None if message is None else self._answer_to(message["do"], deadline)

    def _answer_to(self, do: str, deadline: float) -> Message | None:
        """Return the answer to a message that was sent; None if there is none."""
        if self._connection is None or self._unsent:
            return None
        self._connection.settimeout(max(0.01, deadline - time.monotonic()))
        with suppress(OSError, BadMessage):
            while (answer := holder.receive(self._connection)[0]) is not None:
                if "refused" in answer or answer.get("to") == do:
                    return answer
        return None

    # ---- messages

    def _queue(self, message: Message, key: Key | None = None, file: Holdable | None = None) -> None:
        if self._folder is None:
            return
        self._unsent.append((message, key, file))
        self.flush()

    def step(self) -> None:
        """Send what is waiting; replace a holder that has ended. Call it regularly."""
        if self._folder is None:
            return
        if self._connection is not None:
            try:
                while True:
                    message, fds = holder.receive(self._connection)
                    holder.close_all(fds)
                    if message is None:
                        raise ConnectionResetError("it ended")
                    if "refused" in message:
                        raise ConnectionResetError(str(message["refused"]))
            except BlockingIOError:
                self.flush()
            except (OSError, BadMessage) as error:
                self._lost(str(error))
        if self._connection is None and time.monotonic() >= self._next_attempt:
            self._next_attempt = time.monotonic() + RECONNECT_S
            self._replace(self._folder)

    def _reap(self) -> None:
        """Let a holder of this process that has ended leave the process table."""
        if self._child:
            with suppress(ChildProcessError):
                self._child -= os.waitpid(self._child, os.WNOHANG)[0]

    def _replace(self, folder: Path) -> None:
        self._reap()
        try:
            connection = connect(folder)
        except HolderFailed:
            return
        if connection is not None:
            self._connected(connection)
        elif not self._external:
            self._start(folder)
        if self._connection is not None and self._is_lost:
            self._is_lost = False
            log.info("holder.replaced", files=len(self._files))

    def _lost(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if not self._is_lost:
            self._is_lost = True
            log.warning(
                "holder.lost",
                reason=reason,
                effect="a kill of the data plane empties the cache until another holder has the memory",
            )

    @property
    def is_current(self) -> bool:
        """Whether the holder has all files, or nothing is held."""
        return self._folder is None or (self._connection is not None and not self._unsent)

    def flush(self) -> None:
        """Send as many messages as the holder accepts now. Files that follow each other go in one message."""
        while self._unsent and self._connection is not None:
            count, message, fds = self._next_message()
            try:
                holder.send(self._connection, message, fds, socket.MSG_DONTWAIT)
            except OSError as error:
                if error.errno not in _NOT_NOW:
                    self._lost(error.strerror or "connection failed")
                return
            for _ in range(count):
                self._unsent.popleft()

    def _next_message(self) -> tuple[int, Message, list[int]]:
        """Return the next message to send, its descriptors, and the number of queued messages that it stands for."""
        message, _, file = self._unsent[0]
        if file is None:
            return 1, message, []
        memory: list[Any] = []
        fds: list[int] = []
        for message, _, file in self._unsent:
            if file is None or len(fds) == MAX_FDS_PER_DATAGRAM:
                break
            memory += message["memory"]
            fds.append(file.fd)
        return len(fds), {"do": "hold", "memory": memory}, fds


def _inode(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
