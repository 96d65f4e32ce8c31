"""The connections of a holder, and the deadline of its memory."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import deque
from contextlib import suppress

from dataplane.holding.folder import Folder
from dataplane.holding.memory import HeldMemory
from dataplane.holding.messages import (
    MAX_FDS_PER_DATAGRAM,
    MAX_REASON_CHARACTERS,
    VERSION,
    BadMessage,
    Key,
    Message,
    close_all,
    number_in,
    paths_in,
    receive,
    send,
    uid_of,
)
from dataplane.holding.record import boot_id, load_record, save_record

MAX_CONNECTIONS = 16
MESSAGES_PER_TURN = 32
"""Messages of one connection that are served before those of others."""
MAX_DRAINED = 1 << 20
"""Messages of a data plane that has ended which are served before the next one gets its memory."""
SEND_TIMEOUT_S = 5.0
"""Time in which a peer must have read the memory that it asked for."""
CHECK_S = 1.0
"""Seconds between checks of the socket's name."""
SOCKETS_S = 10.0
"""Seconds for which the connections of a gateway's clients are held after a kill: without a data plane, the clients
would wait for answers that do not come."""
WRITER_ENDS_S = 120.0
"""Time beyond the deadline for a data plane that is starting, or that has lost its connection."""
WARM_STARTS = 3
"""Number of starts in a row that may fail because of the memory: by an error, or by the death of the process between
`adopting` and the end of its list."""
DEFAULT_KEEP_S = 60.0


class Holder:
    """Serves the peers of a state directory, and releases the memory when no data plane comes for it."""

    def __init__(self, folder: Folder, *, stay: bool) -> None:
        self._folder = folder
        self._stay = stay
        self._memory = HeldMemory()
        self._writer: socket.socket | None = None
        self._adopting = False
        """Whether the writer adopts the memory: if it dies before its list is complete, the memory may be the cause."""
        self._failed_starts = 0
        self._keep_s = DEFAULT_KEEP_S
        self._stopped: tuple[int, int] | None = None
        """Blocks and bytes of a data plane that stopped in good order."""
        self._gone_at = 0.0
        """Monotonic time at which the last writer's connection ended."""
        self._ended = self._stopping = False
        self._connections: set[socket.socket] = set()
        self._sending: dict[socket.socket, tuple[deque[Key], float]] = {}
        """Memory that a peer has not read yet, and since when."""
        self._accepts_at = 0.0
        """Monotonic time from which connections are accepted again; 0 if they are accepted."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(folder.listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until nothing is held and no peer is connected, or for ever with `stay`."""
        while not self._is_over():
            for key, events in self._selector.select(self._pause_s()):
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj is self._folder.listener:
                    self._accept()
                elif key.fileobj in self._connections and events & selectors.EVENT_WRITE:
                    self._send_part(key.fileobj)
                elif key.fileobj in self._connections:
                    self._read(key.fileobj)
            self._check()
        self._folder.remove_name()

    def _is_over(self) -> bool:
        idle = not (self._stay or self._memory.files or self._connections)
        return self._ended or idle

    def _pause_s(self) -> float:
        remaining_s = self._deadline - time.monotonic()
        return (
            CHECK_S
            if self._writer is not None or not self._memory.files or remaining_s <= 0
            else min(CHECK_S, remaining_s)
        )

    @property
    def _deadline(self) -> float:
        return self._gone_at + self._keep_s

    def _check(self) -> None:
        """Do what has become due: release the memory, close a gateway's sockets, give the socket its name again."""
        now = time.monotonic()
        if self._stopping or self._folder.is_deleted:
            if self._writer is None:
                stopped = "the holder of the memory was stopped by SIGTERM"
                self._release(stopped if self._stopping else "the state directory was deleted", on_purpose=False)
            self._ended = True
            return
        for connection, (_, since) in list(self._sending.items()):
            if now >= since + SEND_TIMEOUT_S:
                self._close(connection)
        if self._accepts_at and now >= self._accepts_at:
            self._accepts_at = 0.0
            self._selector.register(self._folder.listener, selectors.EVENT_READ)
        if not self._folder.has_name:
            with suppress(OSError):
                listener = self._folder.listen()
                if not self._accepts_at:
                    self._selector.unregister(self._folder.listener)
                self._accepts_at = 0.0
                self._folder.listener.close()
                self._folder.listener = listener
                self._selector.register(listener, selectors.EVENT_READ)
        if self._writer is not None or not self._memory.files:
            return
        if now >= self._gone_at + SOCKETS_S:
            self._memory.drop_sockets()
        if now >= self._deadline:
            end = "stop" if self._stopped else "end"
            why = f"no data plane started within {self._keep_s:g} s after the {end} of the last one (keep_memory_s)"
            if not self._release(why, on_purpose=False) and now >= self._deadline + WRITER_ENDS_S:
                self._memory.clear()

    # ---- connections

    def _accept(self) -> None:
        try:
            connection, _ = self._folder.listener.accept()
        except BlockingIOError:  # the peer is already gone
            return
        except OSError:  # out of descriptors: the listener stays readable
            self._selector.unregister(self._folder.listener)
            self._accepts_at = time.monotonic() + CHECK_S
            return
        try:
            allowed = uid_of(connection) in (os.geteuid(), 0)
        except OSError:
            allowed = False
        if not allowed:
            connection.close()
            return
        if len(self._connections) >= MAX_CONNECTIONS:  # the writer stays
            self._close(next(reader for reader in self._connections if reader is not self._writer))
        self.serve(connection)

    def serve(self, connection: socket.socket) -> None:
        """Answer the requests of a connection."""
        connection.setblocking(False)
        self._connections.add(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _close(self, connection: socket.socket) -> None:
        if connection in self._connections:
            self._selector.unregister(connection)
            self._connections.discard(connection)
            self._sending.pop(connection, None)
            connection.close()
        if connection is self._writer:
            self._writer = None
            self._writer_gone()

    def _read(self, connection: socket.socket) -> bool:
        """Serve waiting messages, a bounded number. Return whether more may be waiting."""
        for _ in range(MESSAGES_PER_TURN):
            if connection not in self._connections or connection in self._sending:
                return False
            try:
                message, fds = receive(connection)
                if message is None:
                    self._close(connection)
                    return False
                answer = self._serve(connection, message, fds)
            except BlockingIOError:
                return False
            except BadMessage as error:
                self._send(connection, {"refused": str(error)})
                if connection is self._writer:  # what follows may rest on what was refused
                    self._close(connection)
            except OSError:
                self._close(connection)
                return False
            else:
                if answer is not None:
                    self._send(connection, answer)
        return True

    def _send(self, connection: socket.socket, answer: Message) -> None:
        """Send an answer. A peer that does not read its answers loses the connection."""
        try:
            send(connection, answer)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended; what it sent before is still read
        except OSError:
            self._close(connection)

    def _send_memory(self, connection: socket.socket) -> None:
        """Begin to send all memory; nothing is read from the peer meanwhile."""
        if connection in self._connections:
            self._sending[connection] = deque(self._memory.files), time.monotonic()
            self._selector.modify(connection, selectors.EVENT_WRITE)

    def _send_part(self, connection: socket.socket) -> None:
        """Send as much memory as the peer accepts now. A message with fewer than MAX_FDS_PER_DATAGRAM ends the list."""
        keys, _ = self._sending[connection]
        files = self._memory.files
        while True:
            part: list[Key] = []
            count = 0
            for key in keys:
                if len(part) == MAX_FDS_PER_DATAGRAM:
                    break
                count += 1
                if key in files:  # it was not freed meanwhile
                    part.append(key)
            entries = [[*key, files[key][1]] for key in part]
            try:
                send(connection, {"memory": entries}, [files[key][0] for key in part])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                break
            except OSError:
                self._close(connection)
                return
            for _ in range(count):
                keys.popleft()
            if len(part) < MAX_FDS_PER_DATAGRAM:
                break
        del self._sending[connection]
        self._selector.modify(connection, selectors.EVENT_READ)

    def _serve(self, connection: socket.socket, message: Message, fds: list[int]) -> Message | None:
        """Serve one message, and return the answer, if it has one. Takes ownership of the descriptors. Raises
        BadMessage, OSError."""
        command = message.get("do")
        if command == "hold" and connection is self._writer:
            self._memory.hold(message, fds)
            return None
        if command == "take":
            self._take(connection, message, fds)
            return None
        close_all(fds)
        if command == "describe":
            return {"holding": self._description(), "to": command}
        if command == "peek":
            self._send(connection, {"holding": self._description(), "to": command})
            self._send_memory(connection)
            return None
        if command == "release":
            return self._release_request(connection, message)
        if connection is not self._writer:
            raise BadMessage(f"do: expected take, describe, peek or release, got {command!r:.40}")
        return self._serve_writer(command, message)

    def _serve_writer(self, command: object, message: Message) -> Message | None:
        if command == "drop":
            self._memory.drop(message)
        elif command == "keep":
            self._memory.keep(message)
        elif command == "adopting":
            self._adopting = True
        elif command == "serving":
            self._memory.named_paths = paths_in(message)
            self._adopting, self._failed_starts = False, 0
        elif command == "failed":
            self._failed_starts += 1
            self._adopting = False
        elif command == "leave":
            self._adopting = False
        elif command == "stop":
            keep_s, blocks, nbytes = (number_in(message, name) for name in ("keep_s", "blocks", "bytes"))
            self._keep_s = keep_s
            self._stopped = int(blocks), int(nbytes)
            self._adopting = False
            self._memory.drop_sockets()
            return {"holding": self._description(), "to": command}
        else:
            raise BadMessage(
                f"do: expected hold, keep, drop, adopting, serving, failed, leave, stop or release, got {command!r:.40}"
            )
        return None

    # ---- the writer

    def _take(self, connection: socket.socket, message: Message, fds: list[int]) -> None:
        owns = self._folder.is_locked_by(fds)
        if message.get("version") != VERSION:
            raise BadMessage(f"version: expected {VERSION}, got {message.get('version')!r:.40}")
        keep_s = number_in(message, "keep_s")
        before = self._writer
        if before is not None and before is not connection:
            drained = 0
            while drained < MAX_DRAINED and self._read(before):  # it may have ended, with messages that are waiting
                drained += MESSAGES_PER_TURN
            if self._writer is not None and owns:
                self._close(before)
        if self._writer is not None and self._writer is not connection:
            raise BadMessage("another data plane is connected")
        adopt = bool(message.get("adopt"))
        if adopt and self._failed_starts >= WARM_STARTS:
            self._release(f"{self._failed_starts} starts with it failed", on_purpose=False, certain=owns)
        self._writer, self._memory.is_listed, self._adopting = connection, False, False
        self._stopped = None
        self._keep_s = keep_s
        self._send(connection, {"holding": self._description(), "to": "take"})
        if adopt:
            self._send_memory(connection)

    def _writer_gone(self) -> None:
        self._gone_at = time.monotonic()
        self._failed_starts += self._adopting and not self._memory.is_listed
        self._adopting = False
        self._memory.writer_gone()

    # ---- the end of the memory

    def _description(self) -> Message:
        blocks, nbytes = self._stopped or (0, 0)
        if self._memory.files and self._stopped is None:
            record = load_record(self._folder.path(""))
            blocks, nbytes = int(record.get("blocks", 0)), int(record.get("bytes", 0))
        remaining_s = None if self._writer is not None else max(0.0, self._deadline - time.monotonic())
        return {
            "version": VERSION,
            "pid": os.getpid(),
            "files": len(self._memory.files),
            "blocks": blocks,
            "bytes": nbytes,
            "connected": self._writer is not None,
            "seconds_left": remaining_s if self._memory.files else None,
        }

    def _release_request(self, connection: socket.socket, message: Message) -> Message:
        reason = message.get("reason")
        if not isinstance(reason, str):
            raise BadMessage(f"reason: expected text, got {reason!r:.40}")
        description = self._description()
        if connection is self._writer:  # it has marked its memory itself
            self._adopting = False
            self._memory.discard()
        elif self._writer is not None:
            return {"refused": "a data plane has the memory, or is taking it over"}
        elif not self._release(reason[:MAX_REASON_CHARACTERS], on_purpose=bool(message.get("on_purpose"))):
            return {"refused": "a data plane uses the state directory"}
        return {"released": description, "to": "release"}

    def _release(self, reason: str, *, on_purpose: bool, certain: bool = False) -> bool:
        """Mark the memory as released, remove the names of the named segment, and record why. Return False if a data
        plane uses the state directory, which may serve the memory; `certain`: it does not."""
        if not self._memory.files:
            return True
        if not certain and self._folder.has_data_plane:
            return False
        description = self._description()
        if self._memory.mark_released():
            record = {
                "blocks": description["blocks"],
                "bytes": description["bytes"],
                "at": time.time(),
                "boot": boot_id(),
                "reason": reason,
                "on_purpose": on_purpose,
            }
            with suppress(OSError):  # on a full disk, the next start reports less
                save_record(self._folder.path(""), record)
        self._failed_starts = 0
        self._memory.clear()
        return True

    def stop(self, *_: object) -> None:
        """Handle SIGTERM: soon release memory that no data plane serves, and end."""
        self._stopping = True
