"""How entries of the audit hang together: each one's hash is over all of it and over the hash of the one before.

`hash = SHA-256(hash of the entry before, newline, canonical JSON of the entry without its hash)`, in hex; before the
first entry comes the empty text. Canonical JSON: keys sorted, no spaces, ASCII alone. An export has every entry as
JSON: anybody can check it with a dozen lines of any language, and nobody can change one without changing all that
follow.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

HASHED = (
    *("id", "at", "actor", "token_id", "source", "action", "kind", "name", "type", "generation"),
    *("before", "after", "request_id", "trace_id", "decision", "reason"),
)
"""Columns of an entry: all but `hash`."""


def link(previous: str, entry: Mapping[str, Any]) -> str:
    """The hash of the entry that follows the one with hash `previous`."""
    text = json.dumps(dict(entry), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return sha256(f"{previous}\n{text}".encode()).hexdigest()


def plain(value: Any) -> Any:
    """A value as it is after it was JSON."""
    return json.loads(json.dumps(value, allow_nan=False))
