"""The steps by which an object changes its state. The caller holds the lock of the table. A kill may follow any store,
so the control word is stored last in each step."""

import time

import numpy as np

from dataplane.ipc.store.layout import (
    FREE,
    H_ABANDONED_PUTS,
    H_CHANGES,
    H_NEXT_SEQUENCE,
    H_USED_SLOTS,
    READY,
    RETIRED,
    STATE_BITS,
    WRITING,
    Tables,
    increment,
)


def begin_change(tables: Tables) -> int:
    """Announce a change to processes that remember free ranges. Return the number to compare with later."""
    return increment(tables.header, H_CHANGES) + 1


def allocate(tables: Tables, slot: int, offset: int, nbytes: int, tag: tuple[int, int], row: int) -> int:
    """Give a free slot to the writer of a row. Return the object's sequence number."""
    sequence = increment(tables.header, H_NEXT_SEQUENCE)
    if slot >= tables.used_slots():
        tables.header[H_USED_SLOTS] = slot + 1
    tables.reads[slot] = 0
    tables.refs[slot] = 0
    tables.offset[slot] = offset
    tables.nbytes[slot] = nbytes
    tables.tag[slot], tables.tag_2[slot] = tag
    tables.owner[slot] = row
    tables.control[slot] = sequence << STATE_BITS | WRITING
    return sequence


def publish(tables: Tables, slot: int, sequence: int, *, references: int) -> None:
    """Make a written object readable."""
    tables.refs[slot] = references
    tables.used[slot] = time.monotonic_ns()
    tables.control[slot] = sequence << STATE_BITS | READY


def retire(tables: Tables, slot: int) -> None:
    """Hide an object from later readers. Readers that already read it keep its bytes."""
    sequence = int(tables.control[slot]) >> STATE_BITS
    tables.control[slot] = sequence << STATE_BITS | RETIRED


def free(tables: Tables, slot: int) -> None:
    """Free a slot and its bytes."""
    sequence = int(tables.control[slot]) >> STATE_BITS
    tables.control[slot] = sequence << STATE_BITS | FREE


def free_writes_of(tables: Tables, row: int) -> None:
    """Free the objects that the dead process of a row was writing."""
    for slot in tables.in_state(WRITING):
        if int(tables.owner[slot]) != row:
            continue
        begin_change(tables)
        free(tables, slot)
        tables.header[H_ABANDONED_PUTS] += np.uint64(1)
