"""Hand look-up results that no scheduler has fetched yet to the next data plane at a planned restart.

A scheduler requests a look-up, and then its result. The data plane may be replaced between the two requests, and
without its result the look-up would count as a miss.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from dataplane.gateways.lmcache.handlers.sessions import MAX_LOOKUPS

NAME = "results"

_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, str, int]])


def save(folder: Path, results: dict[tuple[bytes, str], int]) -> None:
    """Write the hits of look-ups, by connection and request. Results that cannot be written become misses."""
    if not results:
        return
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / NAME).write_bytes(msgspec.msgpack.encode([(*key, hits) for key, hits in results.items()]))


def take(folder: Path) -> dict[tuple[bytes, str], int]:
    """Return the results that the previous data plane saved, and delete them; empty if none can be read."""
    path = folder / NAME
    try:
        saved = _decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        saved = []
    with suppress(OSError):
        path.unlink(missing_ok=True)
    return {(connection, request): hits for connection, request, hits in saved[:MAX_LOOKUPS]}
