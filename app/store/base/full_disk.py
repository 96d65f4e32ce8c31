"""Reading an SQLite database when the disk has no room for the files beside it.

A connection to a database with a write-ahead log needs a shared index of 32 KiB. If there is no room for it and the log
is empty, the database file is complete, and no process can change it: it is opened as `immutable`. Such a connection
must be used only briefly: when there is room again, another process may write.
"""

import os
import sqlite3
from contextlib import closing
from urllib.parse import quote

_NO_ROOM = ("SQLITE_IOERR_SHM", "SQLITE_IOERR_WRITE", "SQLITE_FULL", "SQLITE_CANTOPEN")


def is_stuck(path: str) -> bool:
    """Return whether SQLite cannot open a database for lack of room although its file can be read as immutable."""
    try:
        _look(path)
    except sqlite3.Error as error:
        if not error.sqlite_errorname.startswith(_NO_ROOM) or _size(f"{path}-wal") > 0:
            return False
    else:
        return False
    try:
        _look(url_of(path), uri=True)
    except sqlite3.Error:
        return False
    return True


def _look(path: str, *, uri: bool = False) -> None:
    """Try to read the database. Raise sqlite3.Error."""
    with closing(sqlite3.connect(path, uri=uri)) as connection:
        connection.execute("PRAGMA schema_version")


def url_of(path: str) -> str:
    """Return the immutable database's URL for `sqlite3.connect(…, uri=True)`."""
    return f"file:{quote(path)}?mode=ro&immutable=1"


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
