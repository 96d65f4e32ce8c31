"""Which open reservations an invalidation of a prefix covers: nothing of them may be published."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataplane.core.engines import Reservation
from dataplane.core.lineage import identities
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import I64, U64, pack_keys

MAX_KEYS = 65_536
"""Keys of reservations that one invalidation looks at. Beyond them, longest reservations first, each one is covered."""


def touching(reservations: Sequence[Reservation], keys: U64) -> list[Reservation]:
    """Reservations whose chain goes through one of these keys (n, 4), or through what another one of them writes."""
    looked: list[Reservation] = []
    over: list[Reservation] = []
    size = 0
    for each in sorted(reservations, key=lambda each: len(each.keys)):
        size += len(each.keys) // KEY_BYTES
        (looked if size <= MAX_KEYS else over).append(each)
    if sum(len(each.writing) for each in over) > MAX_KEYS:
        return list(reservations)
    parts = [keys, *map(_written, over), *map(_written, looked), *map(_through, looked)]
    names, count = identities(np.concatenate(parts))
    split = np.split(names, np.cumsum([len(part) for part in parts])[:-1])
    first = 1 + len(over)
    start = np.concatenate(split[:first])
    written, through = split[first : first + len(looked)], split[first + len(looked) :]
    return over + [looked[at] for at in _closure(start, written, through, count)]


def _closure(start: I64, written: Sequence[I64], through: Sequence[I64], count: int) -> list[int]:
    """Which reservations are reached from names of keys, each one leading on to what it writes."""
    begins = np.zeros(count, np.bool_)
    begins[start] = True
    leads = begins.copy()
    for part in written:
        leads[part] = True
    # Most keys are those of one reservation alone, from which nobody else can be reached.
    passed = np.bincount(np.concatenate((*through, start[:0])), minlength=count)
    leads &= begins | (passed > 1)
    passing: dict[int, list[int]] = {}
    for at, part in enumerate(through):
        for name in part[leads[part]].tolist():
            passing.setdefault(name, []).append(at)
    reached: dict[int, None] = {}
    todo = [name for name in passing if begins[name]]
    while todo:
        for at in passing.pop(todo.pop(), ()):
            if at not in reached:
                reached[at] = None
                todo += written[at][leads[written[at]]].tolist()
    return list(reached)


def _written(reservation: Reservation) -> U64:
    return pack_keys([block.key for block in reservation.writing.values()])


def _through(reservation: Reservation) -> U64:
    """Its keys, each once, and what comes before the first one."""
    first = reservation.writing.get(0)
    return pack_keys(reservation.keys + (b"" if first is None else first.parent))
