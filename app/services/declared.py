"""What documents declare: every record checked, every fault told at once with its path.

Pure, and for large documents slow: it runs in a thread.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.errors import FieldError, Invalid
from app.services import checks
from app.services.callers import Caller
from app.services.document_text import Unreadable, lines, member, read
from app.services.fields import field_error
from app.services.kinds import KINDS, Asked, Encode, Kind
from app.services.turns import giving_way
from dataplane.protocol.control import SnapshotType

API_VERSION = "larder/v1"
MAX_RECORDS = 100_000
"""Of all types together."""
MAX_TOLD = 1000
"""Faults that are told one by one."""
_Resolve = Callable[[Kind, str, msgspec.Struct], Asked]
_HEADS = ("apiVersion", "managed_by")


@dataclass(frozen=True)
class Record:
    """One record, and where it stands."""

    path: str
    asked: Asked


@dataclass
class Declared:
    """The records of all documents together."""

    owner: str = ""
    """Whose documents these are."""
    assumed: str = ""
    """Whose the records are that say nothing, in documents that say nothing."""
    records: dict[SnapshotType, dict[str, Record]] = field(
        default_factory=lambda: {kind: {} for kind in KINDS}
    )
    """By key."""
    faults: list[FieldError] = field(default_factory=list)
    named: dict[tuple[SnapshotType, str], str] = field(default_factory=dict)
    """Where each name stands, whether its record can be or not."""
    foreign: tuple[str, str | None] | None = None
    """Path and salt of the first record that is not the caller's to change; without a salt it is about all tenants."""

    def add(self, path: str, message: str) -> None:
        self.faults.append(FieldError(path, message))


def declare(
    given: dict[str, Any] | str | list[dict[str, Any] | str],
    owner: str,
    by: Caller,
    now: float,
    encode: Encode,
    assumed: str = "",
) -> Declared:
    """Raises Invalid with every fault; Forbidden for records that are not the caller's."""
    found = Declared(assumed=assumed)
    texts: dict[str, str] = {}
    documents = list(_documents(given, texts, found))
    found.owner = _owner(documents, owner, found)
    for path, document in documents:
        _sections(document, path, found, by, lambda kind, name, put: kind.resolve(name, put, now, encode))
    if found.foreign is not None:
        path, salt = found.foreign
        if salt is None:
            by.check_whole(path)
        else:
            by.check_salt(salt)
    if sum(map(len, found.records.values())) == 0 and not found.faults and not documents:
        found.add("document", "expected a document, got nothing")
    if found.faults:
        raise refused(found.faults, texts)
    return found


def refused(faults: list[FieldError], texts: dict[str, str]) -> Invalid:
    """All faults as one failure, with lines where there is a text."""
    told = _with_lines(faults[:MAX_TOLD], texts)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Invalid(f"{told[0].path}: {told[0].message}{more}", told)


def _documents(
    given: dict[str, Any] | str | list[dict[str, Any] | str], texts: dict[str, str], found: Declared
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each document with the path in front of its own; nothing for the only one."""
    several = isinstance(given, list)
    for number, item in enumerate(given if isinstance(given, list) else [given]):
        path = f"document[{number}]" if several else ""
        parts: list[Any] = [item]
        if isinstance(item, str):
            try:
                parts = read(item)
            except Unreadable as error:
                found.add(path or "document", str(error))
                continue
            texts[path] = item
        if not parts and several:
            found.add(path, "expected a document, got nothing")
        for place, part in enumerate(parts):
            at = path if len(parts) == 1 else f"{path or 'document'}[{place}]"
            if isinstance(part, dict):
                yield at, part
            else:
                found.add(at or "document", f"expected a map, got {_kind_of(part)}")


def _owner(documents: list[tuple[str, dict[str, Any]]], asked: str, found: Declared) -> str:
    """Whose the records are: all documents and the caller agree."""
    owner = asked
    try:
        checks.managed_by(asked)
    except ValueError as error:
        found.add("managed_by", str(error))
    for path, document in documents:
        named = document.get("managed_by")
        at = member(path, "managed_by")
        if named is None or named == owner:
            continue
        if not isinstance(named, str):
            found.add(at, f"expected text, got {_kind_of(named)}")
            continue
        try:
            checks.managed_by(named)
        except ValueError as error:
            found.add(at, str(error))
            continue
        if owner:
            found.add(at, f"expected {owner!r}, as asked for or in the document before, got {named!r}")
        owner = owner or named
    return owner


def _sections(document: dict[str, Any], path: str, found: Declared, by: Caller, resolve: _Resolve) -> None:
    version = document.get("apiVersion")
    if version != API_VERSION:
        got = repr(version[:40]) if isinstance(version, str) else _kind_of(version)
        found.add(member(path, "apiVersion"), f"expected {API_VERSION!r}, got {got}")
    for name, section in document.items():
        if name in _HEADS:
            continue
        kind = next((kind for kind in KINDS.values() if kind.name == name), None)
        at = member(path, name)
        if kind is None:
            found.add(at, f"unknown; expected one of {', '.join((*_HEADS, *KINDS))}")
            continue
        for place, key, fields in giving_way(_entries(kind, section, at, found), 50):
            if sum(map(len, found.records.values())) >= MAX_RECORDS:
                found.add(at, f"expected at most {MAX_RECORDS:,} records in all")
                return
            _record(kind, place, key, fields, found, by, resolve)


def _entries(
    kind: Kind, section: Any, path: str, found: Declared
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, name and fields of each record of a list or a map."""
    if section is None:
        return
    if isinstance(section, dict):
        for name, fields in section.items():
            place = member(path, name)
            if fields is None or isinstance(fields, dict):
                yield place, name, fields or {}
            else:
                found.add(place, f"expected a map, got {_kind_of(fields)}")
        return
    if not isinstance(section, list):
        found.add(path, f"expected a list, or a map by {kind.named_by}, got {_kind_of(section)}")
        return
    for number, item in enumerate(section):
        place = f"{path}[{number}]"
        if not isinstance(item, dict):
            found.add(place, f"expected a map, got {_kind_of(item)}")
            continue
        name = item.get(kind.named_by)
        if not isinstance(name, str):
            got = _kind_of(name) if kind.named_by in item else "nothing"
            found.add(f"{place}.{kind.named_by}", f"expected text, got {got}")
        else:
            yield place, name, {field: value for field, value in item.items() if field != kind.named_by}


def _record(
    kind: Kind, path: str, name: str, fields: dict[str, Any], found: Declared, by: Caller, resolve: _Resolve
) -> None:
    first = found.named.setdefault((kind.name, name), path)
    if first != path:
        found.add(path, f"the {kind.noun} {name[:128]!r} comes twice: it is also {first}")
        return
    put, right = _converted(kind, path, fields, found)
    whole = len(right) == len(fields)
    try:
        asked = resolve(kind, name, put)
    except Invalid as error:
        for fault in error.errors:
            root = fault.path.partition("[")[0].partition(".")[0]
            if whole or root == kind.named_by or root in right:
                found.add(f"{path}.{fault.path}", fault.message)
        return
    if not whole:
        return
    salt = kind.salt(asked.values)
    if found.foreign is None and by.salts is not None and (salt is None or not by.sees(salt)):
        found.foreign = (path, salt)
    owner = asked.values["managed_by"]
    if owner and found.owner and owner != found.owner:
        found.add(f"{path}.managed_by", f"expected {found.owner!r}, whose document it is, got {owner!r}")
    asked.values["managed_by"] = owner or found.owner or found.assumed
    key = asked.values[kind.key]
    found.records[kind.name][key] = Record(path, asked)


def _converted(
    kind: Kind, path: str, fields: dict[str, Any], found: Declared
) -> tuple[msgspec.Struct, dict[str, Any]]:
    """The body of a PUT and the fields that it is made of; what cannot be is told and left out."""
    try:
        return msgspec.convert(fields, kind.put), fields
    except msgspec.ValidationError:
        pass
    right = {}
    for name, value in fields.items():  # the decoder stops at the first fault
        try:
            msgspec.convert({name: value}, kind.put)
        except msgspec.ValidationError as error:
            fault = field_error(str(error), kind.put)
            known = name in kind.put.__struct_fields__
            found.add(f"{path}.{fault.path}" if known else member(path, name), fault.message)
        else:
            right[name] = value
    return msgspec.convert(right, kind.put), right


def _kind_of(value: Any) -> str:
    """A wrong value, in a word."""
    if value is None:
        return "nothing"
    words = {bool: "true or false", int: "a number", float: "a number", str: "text", dict: "a map"}
    return words.get(type(value), "a list")


def _with_lines(faults: list[FieldError], texts: dict[str, str]) -> list[FieldError]:
    """Each fault of a text with its line."""
    known = {path: lines(text) for path, text in texts.items()}
    told = []
    for fault in faults:
        before = max((path for path in texts if fault.path.startswith(path)), key=len, default=None)
        line = None
        if before is not None:
            line = _line(known[before], fault.path[len(before) :].lstrip("."))
        told.append(FieldError(fault.path, f"{fault.message} (line {line})") if line else fault)
    return told


def _line(known: dict[str, int], path: str) -> int | None:
    """Of the value, or of what it would be in."""
    while path:
        if path in known:
            return known[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return None
