"""Hash chain of the audit log: each entry's hash covers the whole entry and the previous entry's hash.

`hash = SHA-256(hash of the previous entry, newline, canonical JSON of the entry without its hash)`, in hex. The first
entry uses an empty previous hash. Canonical JSON has sorted keys, no spaces, and only ASCII. An export contains every
entry as JSON. Anyone can verify it with a dozen lines of code in any language, and an entry cannot be changed without
changing all entries that follow.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

HASHED = (
    *("id", "at", "actor", "token_id", "source", "action", "kind", "name", "type", "generation"),
    *("before", "after", "request_id", "trace_id", "decision", "reason"),
)
"""Columns of an entry that are hashed: all but `hash`."""


def link(previous: str, entry: Mapping[str, Any]) -> str:
    """Return the hash of the entry that follows an entry with the hash `previous`."""
    text = json.dumps(dict(entry), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return sha256(f"{previous}\n{text}".encode()).hexdigest()


def plain(value: Any) -> Any:
    """Return a value as it is after a round trip through JSON."""
    return json.loads(json.dumps(value, allow_nan=False))
