"""Find the open reservations that an invalidation of a prefix covers. None of their blocks may be published."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataplane.core.engines.engines import OpenReservation
from dataplane.core.pool.lineage import identities
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import I64, U64, pack_keys

MAX_KEYS = 65_536
"""Maximum number of reservation keys that one invalidation examines, shortest reservations first. Every reservation
beyond this limit counts as covered."""


def touching(reservations: Sequence[OpenReservation], keys: U64) -> list[OpenReservation]:
    """Return the reservations whose chain contains one of `keys` [n, 4], or a block that a covered reservation writes.

    The rule applies transitively.
    """
    compared: list[OpenReservation] = []
    not_compared: list[OpenReservation] = []
    size = 0
    for reservation in sorted(reservations, key=lambda reservation: len(reservation.keys)):
        size += len(reservation.keys) // KEY_BYTES
        (compared if size <= MAX_KEYS else not_compared).append(reservation)
    if sum(len(reservation.writing) for reservation in not_compared) > MAX_KEYS:
        return list(reservations)
    parts = [keys, *map(_written, not_compared), *map(_written, compared), *map(_through, compared)]
    key_ids, count = identities(np.concatenate(parts))
    split = np.split(key_ids, np.cumsum([len(part) for part in parts])[:-1])
    first = 1 + len(not_compared)
    start = np.concatenate(split[:first])
    written, through = split[first : first + len(compared)], split[first + len(compared) :]
    return not_compared + [compared[at] for at in _closure(start, written, through, count)]


def _closure(start: I64, written: Sequence[I64], through: Sequence[I64], count: int) -> list[int]:
    """Return the indexes of the reservations that are reachable from `start`.

    A reservation is reached through any key in `through`, and leads on to the keys that it writes. Keys are given as
    their numbers, which are below `count`.
    """
    begins = np.zeros(count, np.bool_)
    begins[start] = True
    leads = begins.copy()
    for part in written:
        leads[part] = True
    # Most keys belong to a single reservation, so they lead to no other one.
    passed = np.bincount(np.concatenate((*through, start[:0])), minlength=count)
    leads &= begins | (passed > 1)
    passing: dict[int, list[int]] = {}
    for at, part in enumerate(through):
        for key_id in part[leads[part]].tolist():
            passing.setdefault(key_id, []).append(at)
    reached: dict[int, None] = {}
    todo = [key_id for key_id in passing if begins[key_id]]
    while todo:
        for at in passing.pop(todo.pop(), ()):
            if at not in reached:
                reached[at] = None
                todo += written[at][leads[written[at]]].tolist()
    return list(reached)


def _written(reservation: OpenReservation) -> U64:
    return pack_keys([block.key for block in reservation.writing.values()])


def _through(reservation: OpenReservation) -> U64:
    """Return the keys of a reservation and the key before them."""
    return pack_keys(reservation.keys + reservation.parent)
