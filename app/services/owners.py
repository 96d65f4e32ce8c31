"""Whose a record is among those who apply files, and who may say so.

An owner's next document with `prune` deletes what is the owner's, and refuses what is somebody else's: who makes a
record another owner's decides over both.
"""

from app.errors import FieldError, Forbidden
from app.services.callers import Caller

BOOT = "boot"
"""Owner of the records of `[app] apply_file` that names none; nobody else makes a record its own."""


def check(by: Caller, held: str | None, asked: str, document: str = "", *, booting: bool = False) -> None:
    """Refuse an owner that is not the caller's to give; `held` is the record's, None for a new one, and `document`
    whose document is applied. Raises Forbidden."""
    if asked == (held or ""):
        return
    if asked == BOOT and not booting:
        expected = f"another owner: {BOOT!r} is the file's that the management plane applies at its start"
    elif by.salts is None or (held is None and asked == document):
        return
    elif held is None:
        expected = "none: tokens that are limited to tenants name an owner for a whole document alone"
    else:
        expected = f"{held!r}, as it is: tokens that are limited to tenants may not change whose a record is"
    message = f"expected {expected}; got {asked!r}"
    raise Forbidden(f"managed_by: {message}", [FieldError("managed_by", message)])
