"""A data plane's connection to the holder of its memory."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol

import structlog

from dataplane.base.child_command import standalone_command
from dataplane.holding import SOCKETS
from dataplane.holding.connection_state import HolderState, HolderStep, ReplaceSchedule, advance
from dataplane.holding.folder import Folder
from dataplane.holding.messages import (
    MAX_FDS_PER_DATAGRAM,
    VERSION,
    BadMessage,
    Key,
    Message,
    TooFewDescriptors,
    close_all,
    receive,
    receive_memory,
    send,
)
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
REFUSED_S = 5.0
"""Seconds for which a holder that refuses to hand the memory over is asked again."""
EXTERNAL_S = 30.0
"""Longest wait for a holder that another service or container runs."""
STOP_S = 10.0
"""Longest wait, at a stop, for an answer of the holder, or of another one in place of a holder that was lost."""
LOCKED_S = 2.0
"""Time in which a holder that ends unlocks the state directory."""
RETRY_S = 0.1
AFTER_A_KILL_S = 60.0
"""Seconds for which memory is held after a kill if `keep_memory_s` is less: its data plane is started again."""
_NOT_NOW = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)

Inode = tuple[int, int]
"""Device and inode of a file."""

log = structlog.stdlib.get_logger()


class Holdable(Protocol):
    """An object that is duplicated for the holder: memory, or a gateway's socket."""

    @property
    def fd(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class HolderConnection:
    """A data plane's connection to the holder of its memory, from `take` to `end`. Without a folder, nothing is held.

    Only `take`, `stop`, `release` and `end` wait. When the holder ends, another one is started, or awaited if it is
    `external`.
    """

    def __init__(self, folder: Path | None = None, keep_s: float = 0.0, *, external: bool = False) -> None:
        self._folder = folder
        self._keep_s = keep_s
        self._external = external
        self._lock = -1
        self._state = HolderState.ABSENT
        self._connection: socket.socket | None = None
        """Set while the state is UP."""
        self._replacements = ReplaceSchedule()
        self._children: set[int] = set()
        """Process ids of holders that this process started, until they have ended."""
        self._files: dict[Key, Holdable] = {}
        """All that the holder has once all messages are sent."""
        self._held: set[Key] = set()
        """What was sent to this holder."""
        self._taken: dict[Key, Inode] = {}
        """What this holder had before the list of all files; those that are the same are not sent again."""
        self._unsent: OrderedDict[Key | int, tuple[Message, int]] = OrderedDict()
        """Messages with a descriptor or -1, by number. A key stands for the message that makes the holder have the file
        of this key, or drop it."""
        self._numbers = count()
        self._adopts = False
        """Whether this start goes on with memory that was held."""
        self._listed = False
        self._serving: Message | None = None

    # ---- the start

    def take(self, lock: int = -1) -> tuple[list[tuple[str, int, int]], str]:
        """Become the writer. Return the memory that is held (kind, number, fd), which the caller owns, and why there is
        none if a holder does not hand it over. `lock` is the descriptor that locks the state directory.

        Raises OSError if this process may not open as many descriptors: the holder keeps the memory.
        """
        if self._folder is None:
            return [], ""
        self._lock = lock
        memory, failure = self._take_from_running(self._folder)
        if memory:
            self._taken = {(kind, number): _inode(fd) for kind, number, fd in memory}
            self._adopts = True
            self._queue({"do": "adopting"})
        end = time.monotonic() + LOCKED_S
        while self._connection is None:
            try:
                self._start(self._folder)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    self._lost("another holder has the state directory")
                    break
                time.sleep(RETRY_S / 10)
        return memory, failure

    def _take_from_running(self, folder: Path) -> tuple[list[tuple[str, int, int]], str]:
        """Take the memory of a holder that runs. One that does not answer is tried again for SILENT_S; SIGCONT wakes
        one that was stopped."""
        began = time.monotonic()
        failure = ""
        while True:
            try:
                connection = connect(folder)
                if connection is not None:
                    return self._take_from(connection), ""
            except HolderFailed as error:
                failure = str(error)
                silent = isinstance(error, HolderSilent)
                if time.monotonic() - began < (SILENT_S if silent else REFUSED_S):
                    if silent:
                        signal_holders(folder, signal.SIGCONT)
                    time.sleep(RETRY_S)
                    continue
                # It also holds the name of the gateway's memory.
                killed = signal_holders(folder, signal.SIGKILL)
                log.warning(
                    "memory.not_taken", reason=failure, killed=killed, effect="the start is cold: nothing is cached"
                )
                break
            failure = ""  # one that did not answer had nothing, and ended
            if not self._external or time.monotonic() - began > EXTERNAL_S:
                break
            time.sleep(RETRY_S)
        if self._external:
            log.warning(
                "holder.absent",
                waited_s=round(time.monotonic() - began),
                effect="a holder of this process is started: the cache ends with this container or service",
            )
        return [], failure

    def _take_from(self, connection: socket.socket) -> list[tuple[str, int, int]]:
        """Return the memory of a holder. Raises HolderFailed, HolderSilent, TooFewDescriptors."""
        try:
            answer_to(connection, self._take_message(adopt=True), self._lock)
            memory = receive_memory(connection)
        except TooFewDescriptors:
            connection.close()
            raise
        except (OSError, BadMessage) as error:
            connection.close()
            raise HolderSilent(f"the holder of the memory does not answer: {error}") from None
        except BaseException:
            connection.close()
            raise
        self._up(connection)
        return memory

    def _take_message(self, *, adopt: bool) -> Message:
        keep_s = max(self._keep_s, AFTER_A_KILL_S)
        return {"do": "take", "version": VERSION, "keep_s": keep_s, "adopt": adopt}

    def _start(self, folder: Path) -> None:
        """Start a holder of this process, and begin to send it all files. It has its name at once: if this process is
        killed before the holder runs, the next one finds it. Raises BlockingIOError if the folder has a holder."""
        try:
            new_folder = Folder(str(folder))
        except BlockingIOError:
            raise
        except OSError as error:
            self._lost(f"it cannot be started: {error.strerror}")
            return
        try:
            own_socket, holder_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            new_folder.remove_name()
            new_folder.close()
            self._lost(f"it cannot be started: {error.strerror}")
            return
        descriptors = (holder_socket.fileno(), new_folder.lock, new_folder.listener.fileno())
        with holder_socket:
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
                own_socket.close()
                new_folder.remove_name()
                self._lost(f"it cannot be started: {error.strerror}")
                return
            finally:
                new_folder.close()
        process.returncode = 0  # it outlives this process, or `_reap` waits for it
        self._children.add(process.pid)
        self._connect_to(own_socket)

    def _connect_to(self, connection: socket.socket) -> None:
        """Begin to send all files on a connection to a holder that has none of them."""
        before = self._up(connection)
        self._taken.clear()
        self._held.clear()
        self._unsent.clear()
        self._queue(self._take_message(adopt=False), self._lock)
        for key in self._files:
            self._update(key)
        if self._listed:
            self._queue({"do": "hold", "memory": [], "last": True})
        if self._serving is not None:
            self._queue(self._serving)
        if before is HolderState.LOST and self._state is HolderState.UP:
            log.info("holder.replaced", files=len(self._files))

    def _up(self, connection: socket.socket) -> HolderState:
        """Use a connection. Return the state before."""
        connection.setblocking(False)
        self._connection = connection
        self._replacements.connected(time.monotonic())
        return self._step(HolderStep.CONNECT)

    def _step(self, step: HolderStep) -> HolderState:
        """Advance the state, and return the one before."""
        before, self._state = self._state, advance(self._state, step)
        return before

    def began_cold(self) -> None:
        """Tell that this start does not go on with the memory that was held."""
        self._adopts = False

    def serving(self, named_paths: list[str]) -> None:
        """Tell the holder that the start succeeded, and the names of the named segment, which it removes when it
        releases the memory."""
        self._serving = {"do": "serving", "named_paths": named_paths}
        self._queue(self._serving)

    def start_failed(self, *, because_of_memory: bool) -> None:
        """Tell the holder that this start ends before it serves. It keeps memory that this start went on with."""
        if self._adopts:
            self._queue({"do": "failed" if because_of_memory else "leave"})
        else:
            self.release()

    # ---- files

    def made(self, kind: str, number: int, file: Holdable) -> None:
        """Give the holder a duplicate of a descriptor, which stays open until `dropped`."""
        if self._folder is None:
            return
        self._files[kind, number] = file
        self._update((kind, number))

    def dropped(self, kind: str, number: int) -> None:
        """Make the holder close its duplicate."""
        if self._files.pop((kind, number), None) is not None:
            self._update((kind, number))

    def list_all(self, files: Iterable[tuple[str, int, Holdable]]) -> None:
        """Make the holder hold exactly these files, with kind and number, instead of what it held before."""
        expected = {(kind, number): file for kind, number, file in files}
        for key in list(self._files.keys() - expected.keys()):
            self.dropped(*key)
        for key, file in expected.items():
            if self._files.get(key) is not file:
                self.made(*key, file)
        self._listed = True
        self._taken.clear()
        self._queue({"do": "hold", "memory": [], "last": True})

    # ---- the end

    def stop(self, blocks: int, nbytes: int) -> int:
        """Leave the memory to the holder for `keep_s`, and return its process id; 0 if no holder has the memory."""
        message: Message = {"do": "stop", "keep_s": self._keep_s, "blocks": blocks, "bytes": nbytes}
        self._drop_sockets()
        end = time.monotonic() + STOP_S
        while self._folder is not None:
            answer = self._finally(message, min(end, time.monotonic() + ANSWER_TIMEOUT_S))
            if answer is not None and "holding" in answer:
                return int(answer["holding"]["pid"])
            self._lost("it does not answer")
            signal_holders(self._folder, signal.SIGCONT)
            while self._state is HolderState.LOST and time.monotonic() < end:
                self._replace(self._folder)
                if self._state is HolderState.LOST:
                    time.sleep(RETRY_S)
            if time.monotonic() >= end:
                break
        return 0

    def release(self) -> None:
        """Make the holder close all files: this process has marked its memory as released."""
        self._drop_sockets()
        message = {"do": "release", "reason": "", "on_purpose": True}
        self._finally(message, time.monotonic() + ANSWER_TIMEOUT_S)

    def _drop_sockets(self) -> None:
        """Drop sockets of the gateway, which are closed by now: their descriptors may be others' soon."""
        for key in [key for key in self._files if key[0] in SOCKETS]:
            self.dropped(*key)

    def end(self) -> None:
        """Close the connection, after all messages were sent."""
        self._finally(None, time.monotonic() + ANSWER_TIMEOUT_S)
        self._step(HolderStep.END)
        self._close()

    def _finally(self, message: Message | None, end: float) -> Message | None:
        """Send all messages, and this one, and wait for its answer. Return None if the holder does not answer."""
        if self._connection is None:
            return None
        if message is not None:
            self._queue(message)
        while not self.is_current and time.monotonic() < end:
            time.sleep(RETRY_S / 10)
            self.flush()
        return None if message is None else self._answer_to(message["do"], end)

    def _answer_to(self, command: str, end: float) -> Message | None:
        """Return the answer to a message that was sent; None if there is none."""
        if self._connection is None or self._unsent:
            return None
        self._connection.settimeout(max(0.01, end - time.monotonic()))
        with suppress(OSError, BadMessage):
            while (answer := receive(self._connection)[0]) is not None:
                if "refused" in answer or answer.get("to") == command:
                    return answer
        return None

    # ---- a holder that ends

    def step(self) -> None:
        """Send what is waiting; replace a holder that has ended. Call it regularly."""
        if self._folder is None:
            return
        if self._connection is not None:
            try:
                while True:
                    message, fds = receive(self._connection)
                    close_all(fds)
                    if message is None:
                        raise ConnectionResetError("it ended")
                    if "refused" in message:
                        raise ConnectionResetError(str(message["refused"]))
            except BlockingIOError:
                self.flush()
            except (OSError, BadMessage) as error:
                self._lost(str(error))
        if self._state is HolderState.LOST and self._replacements.due(time.monotonic()):
            self._replace(self._folder)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _lost(self, reason: str) -> None:
        """Close the connection, if there is one, and schedule the next attempt."""
        before, now = self._step(HolderStep.LOSE), time.monotonic()
        self._close()
        if before is HolderState.UP:
            self._replacements.lost(now)
        else:
            self._replacements.failed(now)
        if before is not HolderState.LOST:
            log.warning(
                "holder.lost",
                reason=reason,
                effect="a kill of the data plane empties the cache until another holder has the memory",
            )

    def _replace(self, folder: Path) -> None:
        self._reap()
        try:
            connection = connect(folder)
        except (HolderFailed, OSError) as error:
            self._lost(str(error))
            return
        if connection is not None:
            self._connect_to(connection)
        elif not self._external:
            with suppress(BlockingIOError):  # a holder that ends; the next attempt follows
                self._start(folder)

    def _reap(self) -> None:
        """Let holders of this process that have ended leave the process table."""
        for child in list(self._children):
            with suppress(ChildProcessError):
                if not os.waitpid(child, os.WNOHANG)[0]:
                    continue
            self._children.discard(child)

    # ---- messages

    def _queue(self, message: Message, fd: int = -1) -> None:
        if self._folder is None:
            return
        self._unsent[next(self._numbers)] = message, fd
        self.flush()

    def _update(self, key: Key) -> None:
        """Make the holder have the file of a key, or drop it if there is none."""
        file = self._files.get(key)
        if file is None and key not in self._held:
            self._unsent.pop(key, None)
        elif file is None:
            self._unsent[key] = {"do": "drop", "memory": [[*key]]}, -1
        elif self._taken.get(key) == (inode := _inode(file.fd)):
            self._unsent[key] = {"do": "keep", "memory": [[*key, *inode]]}, -1
        else:
            self._unsent[key] = {"do": "hold", "memory": [[*key, file.nbytes]]}, file.fd
        self.flush()

    @property
    def is_current(self) -> bool:
        """Whether the holder has all files, or nothing is held."""
        return self._folder is None or (self._connection is not None and not self._unsent)

    def flush(self) -> None:
        """Send as many messages as the holder accepts now."""
        while self._unsent and self._connection is not None:
            batch = self._next_batch()
            message = self._unsent[batch[0]][0]
            if len(batch) > 1:
                entries = [entry for name in batch for entry in self._unsent[name][0]["memory"]]
                message = {"do": message["do"], "memory": entries}
            fds = [fd for name in batch if (fd := self._unsent[name][1]) >= 0]
            try:
                send(self._connection, message, fds, socket.MSG_DONTWAIT)
            except OSError as error:
                if error.errno not in _NOT_NOW:
                    self._lost(error.strerror or "connection failed")
                return
            for name in batch:
                del self._unsent[name]
                if not isinstance(name, int):
                    (self._held.discard if message["do"] == "drop" else self._held.add)(name)

    def _next_batch(self) -> list[Key | int]:
        """Return the names of the next messages: one, or some about files that are of one kind, which go together."""
        batch: list[Key | int] = []
        for name, (message, _) in self._unsent.items():
            if batch and (isinstance(name, int) or message["do"] != self._unsent[batch[0]][0]["do"]):
                break
            batch.append(name)
            if isinstance(name, int) or len(batch) == MAX_FDS_PER_DATAGRAM:
                break
        return batch


def _inode(fd: int) -> Inode:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
