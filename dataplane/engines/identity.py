"""What distinguishes the KV values of two engines of one model.

An option of an engine counts if its value is not the engine's default, unless it is known to change no KV value. So an
option of a later release separates blocks until it is known, and an option that is not set separates none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

from dataplane.protocol.spaces import MAX_NAME_CHARACTERS


def listed(names_by_reason: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names, or patterns of names, of options that are given as text by the reason why they do not count."""
    return tuple(name for names in names_by_reason.values() for name in names.split())


def is_listed(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the name of an option matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def revision_of(parts: Sequence[str]) -> str:
    """Return the revision of a space that has these parts, of which empty ones at the end are left out."""
    revision = "/".join(parts).rstrip("/")
    return revision if len(revision) <= MAX_NAME_CHARACTERS else sha256(revision.encode()).hexdigest()


def digest_of(options: Collection[tuple[str, Any]]) -> str:
    """Return text that differs if options differ, and not by the order of keys; empty for none."""
    return sha256(repr(_ordered(list(options))).encode()).hexdigest()[:16] if options else ""


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((repr(key), _ordered(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [_ordered(item) for item in value]
    return sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else repr(value)
