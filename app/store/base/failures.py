"""Translation of database driver errors into Larder's errors: unavailable, busy, conflict, or a defect.

Drivers report errors in many ways (Postgres by SQLSTATE, SQLite by result codes, sockets by OSError, pools by their own
time-out). Only this module distinguishes them. An unknown error is a defect and is passed on unchanged.
"""

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, InternalError, OperationalError

from app.errors import Conflict, LarderError, StoreBusy, StoreUnavailable

UNKNOWN_OUTCOME = (
    "the database went away while the change was being committed: it may have happened or not; "
    "read the record, and make the change again if it is not there"
)
_TAKEN = "another request created or changed the same record at the same time; read it and try again"
_BUSY = "the database is busy with other changes; try again"
_LOST = "the database closed the connection; try again"
_UNREACHABLE = "the database cannot be reached; try again"
_READ_ONLY = "the database takes no changes now, it is read-only; try again later"
FULL = "the database has no room left for changes; try again when there is"

# By SQLSTATE, the longest match first: a code, then its class (two characters).
_POSTGRES: dict[str, tuple[type[LarderError], str]] = {
    "23505": (Conflict, _TAKEN),  # unique_violation
    "23503": (Conflict, _TAKEN),  # foreign_key_violation
    "40001": (StoreBusy, _BUSY),  # serialization_failure
    "40P01": (StoreBusy, _BUSY),  # deadlock_detected
    "55P03": (StoreBusy, _BUSY),  # lock_not_available
    "57014": (StoreBusy, "the database took too long; try again"),  # query_canceled
    "53300": (StoreUnavailable, "the database accepts no more connections; try again"),
    "53100": (StoreUnavailable, FULL),
    "25006": (StoreUnavailable, _READ_ONLY),
    "3D000": (StoreUnavailable, "the database does not exist, or no longer exists"),
    "08": (StoreUnavailable, _LOST),
    "28": (StoreUnavailable, "the database refuses our user or password"),
    "53": (StoreUnavailable, "the database has run out of something that it needs; try again"),
    "57": (StoreUnavailable, "the database is stopping or starting; try again"),
    "58": (StoreUnavailable, "the database cannot use its files; try again"),
    "XX": (StoreUnavailable, "the database failed; try again"),
}
_DEFINITE_CLASSES = ("22", "23", "25", "40", "42", "53", "55")
"""Error classes with which a COMMIT was definitely refused. After any other error its outcome is unknown."""
_SQLITE: dict[str, tuple[type[LarderError], str]] = {
    "SQLITE_CONSTRAINT_UNIQUE": (Conflict, _TAKEN),
    "SQLITE_CONSTRAINT_PRIMARYKEY": (Conflict, _TAKEN),
    "SQLITE_CONSTRAINT_ROWID": (Conflict, _TAKEN),
    "SQLITE_CONSTRAINT_FOREIGNKEY": (Conflict, _TAKEN),
    "SQLITE_BUSY": (StoreUnavailable, "another program holds the database file; try again"),
    "SQLITE_LOCKED": (StoreUnavailable, "another program holds the database file; try again"),
    "SQLITE_READONLY": (StoreUnavailable, _READ_ONLY),
    "SQLITE_FULL": (StoreUnavailable, FULL),
    "SQLITE_IOERR_SHMSIZE": (StoreUnavailable, FULL),
    "SQLITE_CANTOPEN": (StoreUnavailable, "the database file cannot be opened; try again"),
    "SQLITE_IOERR": (StoreUnavailable, "the database file cannot be read or written; try again"),
    "SQLITE_CORRUPT": (StoreUnavailable, "the database file is damaged"),
    "SQLITE_NOTADB": (StoreUnavailable, "the database file is not a database, or no longer one"),
}
_UNSURE = ("SQLITE_IOERR", "SQLITE_CORRUPT")
"""Errors after which a commit may still be in the write-ahead log."""


def meaning(error: Exception, *, committing: bool = False) -> LarderError | None:
    """Return the error to report, or None for a defect. `committing`: the error was raised by the COMMIT itself."""
    if isinstance(error, sa.exc.TimeoutError):
        return StoreBusy("the database is busy: no connection to it became free in time; try again")
    driver = _driver_error(error)
    state = getattr(driver, "sqlstate", None)
    name = getattr(driver, "sqlite_errorname", None)
    if isinstance(state, str):
        known = _POSTGRES.get(state) or _POSTGRES.get(state[:2])
        sure = state.startswith(_DEFINITE_CLASSES)
    elif isinstance(name, str):
        known = _longest(name)
        sure = not name.startswith(_UNSURE)
    else:
        known, sure = _without_code(error), False
    if known is None:
        return None
    kind, message = known
    if committing and not sure:
        return StoreUnavailable(UNKNOWN_OUTCOME)
    return kind(message)


def _driver_error(error: Exception) -> BaseException:
    """Return the driver's error. SQLAlchemy wraps it, and its asyncio adapters wrap it once more."""
    inner: BaseException | None = error.orig if isinstance(error, DBAPIError) else error
    while inner is not None:
        if hasattr(inner, "sqlite_errorname") or getattr(inner, "sqlstate", None) is not None:
            return inner
        inner = inner.__cause__
    return error


def _first(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _longest(name: str) -> tuple[type[LarderError], str] | None:
    """Look up a result code by its longest known prefix: SQLITE_IOERR_WRITE is an SQLITE_IOERR."""
    while name not in _SQLITE and "_" in name:
        name = name.rpartition("_")[0]
    return _SQLITE.get(name)


def _without_code(error: Exception) -> tuple[type[LarderError], str] | None:
    if isinstance(error, IntegrityError):
        return Conflict, _TAKEN
    if isinstance(error, TimeoutError):
        return StoreUnavailable, "the database did not answer in time; try again"
    if isinstance(error, OSError):
        return StoreUnavailable, _UNREACHABLE
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return StoreUnavailable, _LOST
    if isinstance(error, OperationalError | InterfaceError | InternalError):
        if isinstance(_first(error), ValueError):  # the driver could not encode a parameter
            return None
        return StoreUnavailable, "the database did not answer; try again"
    if type(error).__module__.startswith("asyncpg."):  # not wrapped while connecting
        return StoreUnavailable, _UNREACHABLE
    return None
