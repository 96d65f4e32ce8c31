"""The state directory of a holder: its locks, and the socket in it."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress

from dataplane.holding.messages import close_all

SOCKET_NAME = "holder.sock"
LOCK_NAME = "holder.lock"
DATA_PLANE_LOCK_NAME = "dataplane.lock"
MAX_WAITING = 16
"""Connections that wait to be accepted."""


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Return whether a process holds a lock file, as it does until it ends. Raises OSError if the file exists and
    cannot be opened."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class Folder:
    """The lock of a state directory for its holder, and the socket in it. A data plane passes them to the process that
    it starts, which so has its name before it runs."""

    def __init__(self, path: str, lock: int = -1, listener: int = -1) -> None:
        """Lock the folder and listen in it, or take over descriptors. Raises OSError (BlockingIOError: it has a
        holder)."""
        # The folder itself, also after it was renamed. Its path may be too long for the address of a socket.
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.lock = lock
        self._inode = 0
        try:
            if lock < 0:
                self.lock = os.open(self.path(LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.listener = self.listen()
            else:
                self.listener = socket.socket(fileno=listener)
                self.listener.setblocking(False)
        except OSError:
            self._close_locks()
            raise
        self._inode = self._named_inode()

    def path(self, name: str) -> str:
        return f"/proc/self/fd/{self._directory}/{name}"

    @property
    def is_deleted(self) -> bool:
        try:
            return os.fstat(self._directory).st_nlink == 0
        except OSError:  # of a file system that is away
            return False

    @property
    def has_name(self) -> bool:
        """Whether the socket in the folder is this one. True if the folder cannot be searched now."""
        return self._named_inode() == self._inode

    @property
    def has_data_plane(self) -> bool:
        """Whether a data plane uses the state directory. It may be about to connect, and may serve the memory: marking
        that as released would take away its cache."""
        try:
            return is_locked(self.path(DATA_PLANE_LOCK_NAME))
        except OSError:  # unknown: assume that it lives
            return True

    def is_locked_by(self, fds: list[int]) -> bool:
        """Return whether a data plane has sent the descriptor with which it locks the state directory: then it
        displaces any other writer. Takes ownership of the descriptors."""
        try:
            locked = os.stat(self.path(DATA_PLANE_LOCK_NAME))
            for fd in fds[:1]:
                if os.path.samestat(os.fstat(fd), locked):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
        except OSError:
            pass
        finally:
            close_all(fds)
        return False

    def listen(self) -> socket.socket:
        """Return a listening socket that gets its name when it is ready. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        making = self.path(f"{SOCKET_NAME}.new")
        try:
            with suppress(FileNotFoundError):
                os.unlink(making)
            listener.bind(making)
            os.chmod(making, 0o600)
            listener.listen(MAX_WAITING)
            listener.setblocking(False)
            os.rename(making, self.path(SOCKET_NAME))
        except OSError:
            listener.close()
            raise
        self._inode = self._named_inode()
        return listener

    def _named_inode(self) -> int:
        """Return the inode of the socket that has the name; 0 if there is none."""
        try:
            return os.stat(self.path(SOCKET_NAME)).st_ino
        except FileNotFoundError:
            return 0
        except OSError:
            return self._inode

    def remove_name(self) -> None:
        if self.has_name:
            with suppress(OSError):
                os.unlink(self.path(SOCKET_NAME))

    def _close_locks(self) -> None:
        os.close(self._directory)
        if self.lock >= 0:
            os.close(self.lock)

    def close(self) -> None:
        """Close all descriptors of this process; a holder to which they were passed keeps its own."""
        self.listener.close()
        self._close_locks()
