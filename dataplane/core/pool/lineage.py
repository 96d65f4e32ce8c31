"""Lineage of chains: find descendants of blocks by keys and parent keys, given as arrays of four-word rows.

Engines choose keys and parents, so these functions assume nothing about them: keys may share their first words, and
parents may form cycles. The work grows with the number of rows, but not with the depth of chains.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import I64, U64, Mask, pack_keys

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def among(keys: U64, members: Collection[bytes]) -> Mask:
    """Return a mask of the keys (n, 4) that are in `members`."""
    mask = np.zeros(len(keys), np.bool_)
    if not members:
        return mask
    candidates = np.flatnonzero(np.isin(keys[:, 0], pack_keys(list(members))[:, 0]))
    packed, exact = keys[candidates].tobytes(), frozenset(members)
    mask[candidates] = [packed[at : at + KEY_BYTES] in exact for at in range(0, len(packed), KEY_BYTES)]
    return mask


def identities(keys: U64, spaces: U64 | None = None) -> tuple[I64, int]:
    """Return a number from 0 for each key (n, 4), equal for equal keys in the same space, and the count of distinct
    numbers."""
    columns = keys if spaces is None else np.column_stack((keys, spaces))
    marks = keys[:, 0] if spaces is None else keys[:, 0] ^ (spaces * _SPREAD)
    turn: I64 = marks.argsort(kind="stable")
    differ = _changes(columns[turn])
    sorted_marks = marks[turn]
    if (differ & (sorted_marks[1:] == sorted_marks[:-1])).any():  # marks collide, so equal keys may lie apart
        turn = np.lexsort((*columns.T, marks))
        differ = _changes(columns[turn])
    numbers = np.zeros(len(keys), np.int64)
    numbers[turn[1:]] = differ.cumsum()
    return numbers, int(differ.sum()) + min(1, len(keys))


def _changes(rows: U64) -> Mask:
    changed: Mask = (rows[1:] != rows[:-1]).any(axis=1)
    return changed


def descendants(parents: I64, chosen: Mask) -> Mask:
    """Return a mask of the rows that are chosen or descend from a chosen row.

    `parents` (n) is the row of each row's parent, -1 for none.
    """
    count = len(parents)
    mask = np.append(chosen, np.False_)
    ancestors = np.append(np.where(parents < 0, count, parents), count)
    for _ in range(count.bit_length()):  # each iteration doubles the distance to the ancestors
        if (ancestors == count).all():
            break
        mask |= mask[ancestors]
        ancestors = ancestors[ancestors]
    return mask[:count]
