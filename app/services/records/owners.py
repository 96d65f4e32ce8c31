"""Owners of records that documents declare, and who may change the owner.

An owner's next document with `prune` deletes the owner's records that it lacks, and a document is refused if it
contains records of another owner. So a change of a record's owner affects both owners.
"""

from app.errors import Forbidden
from app.services.base.principals import Principal

BOOT = "boot"
"""Owner of the records of `[app] apply_file` without an owner; only that file gives records this owner."""


def check(by: Principal, current: str | None, owner: str, document: str = "", *, booting: bool = False) -> None:
    """Refuse an owner that the caller may not set. `current` is the record's current owner, None for a new record;
    `document` is the owner of the applied document. Raises Forbidden."""
    if owner == (current or ""):
        return
    if owner == BOOT and not booting:
        expected = f"another owner: {BOOT!r} is reserved for the file that the management plane applies at its start"
    elif by.salts is None or (current is None and owner == document):
        return
    elif current is None:
        expected = "none: tokens that are limited to tenants name an owner only for a whole document"
    else:
        expected = f"{current!r}, as it is: tokens that are limited to tenants may not change a record's owner"
    raise Forbidden.at("managed_by", f"expected {expected}; got {owner!r}")
