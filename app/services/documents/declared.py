"""Parses and checks the records that documents declare, and reports every fault at once with its path.

Pure, and slow for large documents, so it runs in a thread.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from app.errors import MAX_FAULTS, FieldError, Invalid
from app.services.base import checks
from app.services.base.fields import field_error
from app.services.base.principals import Principal
from app.services.base.yielding import with_pauses
from app.services.documents.document_text import DocumentSyntaxError, lines, member, read
from app.services.documents.resource_types import KINDS, RESOLVE, DeclaredRecord, Encode
from app.services.records.record_types import PushedType
from dataplane.protocol.control.snapshots import SnapshotType

API_VERSION = "larder/v1"
MAX_RECORDS = 100_000
"""Largest number of records of all types together."""
_Resolve = Callable[[PushedType[Any], str, msgspec.Struct], DeclaredRecord]
_HEADS = ("apiVersion", "managed_by")


@dataclass
class DeclaredRecords:
    """The records of all documents together."""

    owner: str = ""
    """Owner of the documents."""
    assumed: str = ""
    """Owner of records that name none, in documents that name none."""
    records: dict[SnapshotType, dict[str, DeclaredRecord]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    """Records by type and key."""
    faults: list[FieldError] = field(default_factory=list)
    named: dict[tuple[SnapshotType, str], str] = field(default_factory=dict)
    """Path of each name, whether or not its record is valid."""
    foreign: tuple[str, str | None] | None = None
    """Path and salt of the first record that the caller may not change; no salt means that it concerns all tenants."""

    def add(self, path: str, message: str) -> None:
        self.faults.append(FieldError(path, message))


def declare(
    content: dict[str, Any] | str | list[dict[str, Any] | str],
    owner: str,
    by: Principal,
    now: float,
    encode: Encode,
    assumed: str = "",
) -> DeclaredRecords:
    """Return the declared records. Raises Invalid with every fault; Forbidden for records that the caller may not
    change."""
    declared = DeclaredRecords(assumed=assumed)
    texts: dict[str, str] = {}
    documents = list(_documents(content, texts, declared))
    declared.owner = _owner(documents, owner, declared)
    for path, document in documents:
        _sections(document, path, declared, by, lambda kind, name, put: RESOLVE[kind.name](name, put, now, encode))
    if declared.foreign is not None:
        path, salt = declared.foreign
        if salt is None:
            by.check_whole(path)
        else:
            by.check_salt(salt)
    if sum(map(len, declared.records.values())) == 0 and not declared.faults and not documents:
        declared.add("document", "expected a document, got nothing")
    if declared.faults:
        raise refused(declared.faults, texts)
    return declared


def refused(faults: list[FieldError], texts: dict[str, str]) -> Invalid:
    """Return all faults as one error, with line numbers where the document is text."""
    located = _with_lines(faults[:MAX_FAULTS], texts)
    return Invalid.about([*located, *faults[MAX_FAULTS:]])


def _documents(
    content: dict[str, Any] | str | list[dict[str, Any] | str], texts: dict[str, str], declared: DeclaredRecords
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each document with its path prefix, which is empty for a single document."""
    several = isinstance(content, list)
    for number, item in enumerate(content if isinstance(content, list) else [content]):
        path = f"document[{number}]" if several else ""
        parts: list[Any] = [item]
        if isinstance(item, str):
            try:
                parts = read(item)
            except DocumentSyntaxError as error:
                declared.add(path or "document", str(error))
                continue
            texts[path] = item
        if not parts and several:
            declared.add(path, "expected a document, got nothing")
        for index, part in enumerate(parts):
            at = path if len(parts) == 1 else f"{path or 'document'}[{index}]"
            if isinstance(part, dict):
                yield at, part
            else:
                declared.add(at or "document", f"expected a map, got {_kind_of(part)}")


def _owner(documents: list[tuple[str, dict[str, Any]]], default: str, declared: DeclaredRecords) -> str:
    """Return the owner of the records; all documents and the caller must agree."""
    owner = default
    try:
        checks.managed_by(default)
    except ValueError as error:
        declared.add("managed_by", str(error))
    for path, document in documents:
        named = document.get("managed_by")
        at = member(path, "managed_by")
        if named is None or named == owner:
            continue
        if not isinstance(named, str):
            declared.add(at, f"expected text, got {_kind_of(named)}")
            continue
        try:
            checks.managed_by(named)
        except ValueError as error:
            declared.add(at, str(error))
            continue
        if owner:
            declared.add(at, f"expected {owner!r}, as asked for or in the document before, got {named!r}")
        owner = owner or named
    return owner


def _sections(document: dict[str, Any], path: str, declared: DeclaredRecords, by: Principal, resolve: _Resolve) -> None:
    version = document.get("apiVersion")
    if version != API_VERSION:
        actual = repr(version[:40]) if isinstance(version, str) else _kind_of(version)
        declared.add(member(path, "apiVersion"), f"expected {API_VERSION!r}, got {actual}")
    for name, section in document.items():
        if name in _HEADS:
            continue
        kind = next((kind for kind in KINDS.values() if kind.name == name), None)
        at = member(path, name)
        if kind is None:
            declared.add(at, f"unknown; expected one of {', '.join((*_HEADS, *KINDS))}")
            continue
        for index, key, fields in with_pauses(_entries(kind, section, at, declared), 50):
            if sum(map(len, declared.records.values())) >= MAX_RECORDS:
                declared.add(at, f"expected at most {MAX_RECORDS:,} records in all")
                return
            _record(kind, index, key, fields, declared, by, resolve)


def _entries(
    kind: PushedType[Any], section: Any, path: str, declared: DeclaredRecords
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the path, name and fields of each record of a list or a map."""
    if section is None:
        return
    if isinstance(section, dict):
        for name, fields in section.items():
            item_path = member(path, name)
            if fields is None or isinstance(fields, dict):
                yield item_path, name, fields or {}
            else:
                declared.add(item_path, f"expected a map, got {_kind_of(fields)}")
        return
    if not isinstance(section, list):
        declared.add(path, f"expected a list, or a map by {kind.key}, got {_kind_of(section)}")
        return
    for number, item in enumerate(section):
        item_path = f"{path}[{number}]"
        if not isinstance(item, dict):
            declared.add(item_path, f"expected a map, got {_kind_of(item)}")
            continue
        name = item.get(kind.key)
        if not isinstance(name, str):
            actual = _kind_of(name) if kind.key in item else "nothing"
            declared.add(f"{item_path}.{kind.key}", f"expected text, got {actual}")
        else:
            yield item_path, name, {field: value for field, value in item.items() if field != kind.key}


def _record(
    kind: PushedType[Any],
    path: str,
    name: str,
    fields: dict[str, Any],
    declared: DeclaredRecords,
    by: Principal,
    resolve: _Resolve,
) -> None:
    first = declared.named.setdefault((kind.name, name), path)
    if first != path:
        declared.add(path, f"the {kind.noun} {name[:128]!r} is declared twice, also at {first}")
        return
    put, valid_fields = _converted(kind, path, fields, declared)
    all_valid = len(valid_fields) == len(fields)
    try:
        checked = resolve(kind, name, put)
    except Invalid as error:
        for fault in error.errors:
            root = fault.path.partition("[")[0].partition(".")[0]
            if all_valid or root == kind.key or root in valid_fields:
                declared.add(f"{path}.{fault.path}", fault.message)
        return
    if not all_valid:
        return
    if declared.foreign is None and not kind.is_own(checked.values, by):
        declared.foreign = (path, kind.salt(checked.values))
    owner = checked.values["managed_by"]
    if owner and declared.owner and owner != declared.owner:
        declared.add(f"{path}.managed_by", f"expected {declared.owner!r}, the owner of the document, got {owner!r}")
    checked.values["managed_by"] = owner or declared.owner or declared.assumed
    key = checked.values[kind.key]
    declared.records[kind.name][key] = replace(checked, path=path)


def _converted(
    kind: PushedType[Any], path: str, fields: dict[str, Any], declared: DeclaredRecords
) -> tuple[msgspec.Struct, dict[str, Any]]:
    """Return the body of a PUT, and the fields that it was made of; invalid fields are reported and left out."""
    try:
        return msgspec.convert(fields, kind.put), fields
    except msgspec.ValidationError:
        pass
    valid_fields = {}
    for name, value in fields.items():  # the decoder stops at the first fault, so convert field by field
        try:
            msgspec.convert({name: value}, kind.put)
        except msgspec.ValidationError as error:
            fault = field_error(str(error), kind.put)
            is_field = name in kind.put.__struct_fields__
            declared.add(f"{path}.{fault.path}" if is_field else member(path, name), fault.message)
        else:
            valid_fields[name] = value
    return msgspec.convert(valid_fields, kind.put), valid_fields


def _kind_of(value: Any) -> str:
    """Describe the type of a wrong value."""
    if value is None:
        return "nothing"
    words = {bool: "true or false", int: "a number", float: "a number", str: "text", dict: "a map"}
    return words.get(type(value), "a list")


def _with_lines(faults: list[FieldError], texts: dict[str, str]) -> list[FieldError]:
    """Return the faults, with the line number of each that is in a text."""
    lines_by_path = {path: lines(text) for path, text in texts.items()}
    located = []
    for fault in faults:
        before = max((path for path in texts if fault.path.startswith(path)), key=len, default=None)
        line = None
        if before is not None:
            line = _line(lines_by_path[before], fault.path[len(before) :].lstrip("."))
        located.append(FieldError(fault.path, f"{fault.message} (line {line})") if line else fault)
    return located


def _line(line_numbers: dict[str, int], path: str) -> int | None:
    """Return the line of the value, or of the closest enclosing value."""
    while path:
        if path in line_numbers:
            return line_numbers[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return None
