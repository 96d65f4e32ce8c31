"""The text of a document: reads YAML or JSON, with the line of every value, and writes YAML.

The dialect is the core schema of YAML 1.2: `no`, `on` and `1:30` are text, a date is text, and a key is always text. It
is built from the parser's events, so that duplicate keys and tags are errors, and the total size of expanded aliases is
limited.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from app.services.base.yielding import with_pauses
from dataplane.base.visible import is_plain

MAX_NODES = 4_000_000
"""Largest number of values in a text; values that aliases repeat count each time."""
MAX_DEPTH = 32
MAX_DOCUMENTS = 1000
"""Largest number of documents in one text."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml if available; the pure Python loader accepts the same language but is twenty times slower."""
_INTEGER = re.compile(r"[-+]?[0-9]{1,40}|0o[0-7]{1,40}|0x[0-9a-fA-F]{1,40}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,4})?", re.ASCII)
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_EXACT = 1 << 53
"""Below this number every whole float is an exact integer."""
_TEXT_TAG = "tag:yaml.org,2002:str"
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*|[0-9]+[MGT]iB", re.ASCII)
_TAKEN = re.compile(r"(?:true|false|null|yes|no|on|off|y|n)", re.IGNORECASE)


class DocumentSyntaxError(ValueError):
    """The text is neither YAML nor JSON of the accepted dialect. The message contains the position."""


def read(text: str) -> list[Any]:
    """Return the documents of a text; empty for a blank text. Raises DocumentSyntaxError."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [json.loads(text, object_pairs_hook=_pairs, parse_constant=_no_constant)]
        except DocumentSyntaxError:
            raise
        except (ValueError, RecursionError):
            pass  # perhaps YAML flow style; the YAML parser reports the error and its position
    return _Builder(None).build(text)


def lines(text: str) -> dict[str, int]:
    """Return the line (from 1) of every value of a text that `read` accepted, by path such as
    `quotas[3].floor_bytes`."""
    line_numbers: dict[str, int] = {}
    try:
        _Builder(line_numbers).build(text)
    except DocumentSyntaxError:
        return {}
    return line_numbers


def member(path: str, key: str) -> str:
    """Return the path of a value of a map. Keys come from users, so unusual ones are escaped."""
    shown = key if is_plain(key) and len(key) <= 128 else ascii(key[:128])
    return f"{path}.{shown}" if path else shown


def write(document: dict[str, Any], comments: list[str]) -> str:
    """Return the document as YAML, after the comments. `read` returns the same values."""
    out = [f"# {line}\n" for line in comments]
    _write_map(document, "", out)
    return "".join(out)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        names: set[str] = set()
        twice = next(name for name, _ in pairs if name in names or names.add(name))  # type: ignore[func-returns-value]
        raise DocumentSyntaxError(f"the key {twice[:80]!r} occurs twice in one object")
    return mapping


def _no_constant(name: str) -> None:
    raise DocumentSyntaxError(f"{name} is not a number of JSON")


@dataclass
class _Frame:
    """A map or list that is being read."""

    value: dict[str, Any] | list[Any]
    path: str
    anchor: str | None
    before: int
    """Number of nodes before this one."""
    key: str | None = None


@dataclass
class _Builder:
    """Builds values from the parser's events."""

    positions: dict[str, int] | None
    nodes: int = 0
    stack: list[_Frame] = field(default_factory=list)
    anchors: dict[str, tuple[Any, int]] = field(default_factory=dict)
    documents: list[Any] = field(default_factory=list)

    def build(self, text: str) -> list[Any]:
        try:
            for event in with_pauses(yaml.parse(text, Loader=_LOADER), 1000):
                self._take(event)
        except yaml.MarkedYAMLError as error:
            problem = ", ".join(part for part in (error.context, error.problem) if part)
            raise DocumentSyntaxError(f"{_at(error.problem_mark or error.context_mark)}: {problem}") from None
        except yaml.YAMLError as error:  # an invalid character; the error has no line
            raise DocumentSyntaxError(" ".join(str(error).split())) from None
        if len(self.documents) > 1:
            return [document for document in self.documents if document is not None]
        return self.documents if self.documents != [None] else []

    def _take(self, event: Any) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.MappingStartEvent):
            self._open(event, {})
        elif isinstance(event, yaml.SequenceStartEvent):
            self._open(event, [])
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            frame = self.stack.pop()
            if frame.anchor is not None:
                self.anchors[frame.anchor] = (frame.value, self.nodes - frame.before)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            if len(self.documents) >= MAX_DOCUMENTS:
                raise DocumentSyntaxError(f"{_at(event.start_mark)}: expected at most {MAX_DOCUMENTS:,} documents")
            self.anchors.clear()

    def _scalar(self, event: Any) -> None:
        frame = self.stack[-1] if self.stack else None
        if frame is not None and frame.key is None and isinstance(frame.value, dict):
            self._count(1, event)
            if event.value in frame.value:
                raise DocumentSyntaxError(
                    f"{_at(event.start_mark)}: the key {event.value[:80]!r} occurs twice in one map"
                )
            frame.key = event.value
            return
        if event.tag not in (None, "!", _TEXT_TAG):
            raise DocumentSyntaxError(f"{_at(event.start_mark)}: the tag {event.tag[:80]!r} is not supported")
        value = _resolved(event.value) if event.implicit[0] and event.tag is None else event.value
        self._count(1, event)
        self._put(value, event)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1)

    def _open(self, event: Any, value: dict[str, Any] | list[Any]) -> None:
        if event.tag is not None and not event.implicit:
            raise DocumentSyntaxError(f"{_at(event.start_mark)}: the tag {event.tag[:80]!r} is not supported")
        if len(self.stack) >= MAX_DEPTH:
            raise DocumentSyntaxError(f"{_at(event.start_mark)}: expected at most {MAX_DEPTH} levels")
        before = self.nodes
        self._count(1, event)
        path = self._put(value, event)
        self.stack.append(_Frame(value, path, event.anchor, before))

    def _alias(self, event: Any) -> None:
        if event.anchor not in self.anchors:
            raise DocumentSyntaxError(f"{_at(event.start_mark)}: there is no anchor {event.anchor[:80]!r} before it")
        value, nodes = self.anchors[event.anchor]
        self._count(nodes, event)
        self._put(value, event)

    def _put(self, value: Any, event: Any) -> str:
        """Add a value to the open map or list, and return the value's path."""
        if not self.stack:
            self.documents.append(value)
            return ""
        frame = self.stack[-1]
        if isinstance(frame.value, list):
            name, parent = f"{frame.path}[{len(frame.value)}]", frame.path
            frame.value.append(value)
        else:
            if frame.key is None:
                raise DocumentSyntaxError(f"{_at(event.start_mark)}: expected text as a key of a map")
            name, parent = frame.key, frame.path
            frame.value[name] = value
            frame.key = None
        if self.positions is None:
            return ""
        path = name if isinstance(frame.value, list) else member(parent, name)
        if len(self.documents) == 1:
            self.positions[path] = event.start_mark.line + 1
        return path

    def _count(self, nodes: int, event: Any) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise DocumentSyntaxError(
                f"{_at(event.start_mark)}: expected at most {MAX_NODES:,} values in all, those of aliases counted"
            )


def _at(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "somewhere"


def _resolved(text: str) -> Any:
    """Return the value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "0123456789+-.":
        return text
    if _INTEGER.fullmatch(text):
        return int(text, 0 if text[1:2] in ("o", "x") else 10)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _write_map(values: dict[str, Any], indent: str, out: list[str], first: str | None = None) -> None:
    """Write a map. `first` replaces the indent before the first key."""
    for name, value in values.items():
        out.append(f"{indent if first is None else first}{_scalar_text(name)}:")
        first = None
        _write_value(value, indent, out)


def _write_value(value: Any, indent: str, out: list[str]) -> None:
    if isinstance(value, dict) and value:
        out.append("\n")
        _write_map(value, indent + "  ", out)
    elif isinstance(value, list) and value:
        if all(isinstance(item, int) for item in value):
            out.extend(_wrapped(value, indent + "  "))
            return
        out.append("\n")
        for item in value:
            if isinstance(item, dict):
                _write_map(item, indent + "    ", out, f"{indent}  - ")
            else:
                out.append(f"{indent}  - {_scalar_text(item)}\n")
    else:
        empty = "{}" if isinstance(value, dict) else "[]" if isinstance(value, list) else None
        out.append(f" {empty or _scalar_text(value)}\n")


def _wrapped(numbers: list[int], indent: str) -> Iterator[str]:
    """Yield a long list of numbers (tokens), sixteen per line."""
    rows = [numbers[at : at + 16] for at in range(0, len(numbers), 16)]
    text = f",\n{indent}".join(", ".join(map(str, row)) for row in rows)
    yield f" [{text}]\n"


def _scalar_text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and not _TAKEN.fullmatch(value):
        return value
    return _quoted(value)


def _quoted(text: str) -> str:
    """Return the text in double quotes, with invisible characters escaped."""
    parts = []
    for character in json.dumps(text, ensure_ascii=False):
        if character.isprintable() and character != "\ufeff":
            parts.append(character)
        else:
            number = ord(character)
            parts.append(f"\\u{number:04x}" if number < 1 << 16 else f"\\U{number:08x}")
    return "".join(parts)
