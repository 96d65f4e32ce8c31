"""Damaged memory of a previous data plane, and damaged mappings of an engine: read, or refused with a reason."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from dataplane.core.journal.id_journal import (
    EngineName,
    IdJournal,
    JournalContents,
    Record,
    SegmentName,
    SpaceName,
    TenantName,
    names_bytes,
)
from dataplane.core.journal.recovery_table import RecoveryTable, recovery_table_bytes
from dataplane.protocol.layout import PAGE, AreaMemory, IndexMemory, LayoutError, area_bytes, index_bytes
from dataplane.protocol.tier_directory import TierDirectory, directory_bytes
from tests.dataplane import factories as make

RECORDS: tuple[Record, ...] = (
    TenantName(1, "acme"),
    SpaceName(1, make.space()),
    SegmentName(1, 1, 1 << 20, small=False),
    EngineName(1, 7, 8, "group", "name", 9.5, [(1, True)]),
)


def journal() -> bytearray:
    buffer = bytearray(names_bytes(2 * PAGE))
    names = IdJournal(buffer)
    names.format()
    for record in RECORDS:
        names.append(record)
    return buffer


def recovery_table() -> bytearray:
    buffer = bytearray(recovery_table_bytes(64))
    RecoveryTable(buffer, 64).format(5)
    return buffer


def index() -> bytearray:
    buffer = bytearray(index_bytes(64))
    IndexMemory(buffer, 64).format(1, 2)
    return buffer


def area() -> bytearray:
    buffer = bytearray(area_bytes(64, 8))
    AreaMemory(buffer, 64, 8).format()
    return buffer


def directory() -> bytearray:
    buffer = bytearray(directory_bytes(16))
    TierDirectory.make(memoryview(buffer), 16)
    return buffer


def damaged(data: bytearray) -> Iterator[bytearray]:
    chance = random.Random(7)
    used = [at for at, byte in enumerate(data) if byte]
    for length in (0, 1, 7, 8, 4095, PAGE, PAGE + 1, len(data) - 8, len(data) - 1):
        yield data[:length]
    for extra in (1, 8, PAGE, 1 << 20):
        yield data + bytes(extra)
    for at in (*used, *chance.choices(range(len(data)), k=200)):
        changed = data.copy()
        changed[at] ^= 1 << chance.randrange(8)
        yield changed
    for foreign in (b"\xff", b"[", b"\x91", b"LARDERNM", b"LARDERBK"):
        yield bytearray(foreign * (len(data) // len(foreign)))


@pytest.mark.parametrize(
    ("make_bytes", "attach"),
    [
        (journal, IdJournal.attach),
        (recovery_table, RecoveryTable.attach),
        (index, IndexMemory.attach),
        (area, AreaMemory.attach),
        (directory, lambda data: TierDirectory(memoryview(data))),
    ],
)
def test_damaged_memory_is_read_or_refused_with_a_reason(
    make_bytes: Callable[[], bytearray], attach: Callable[[bytearray], object]
) -> None:
    for data in damaged(make_bytes()):
        with suppress(LayoutError):
            attach(data)


def test_a_record_that_was_changed_is_not_another_one() -> None:
    whole = JournalContents()
    for record in RECORDS:
        whole.take(record)
    for data in damaged(journal()):
        with suppress(LayoutError):
            _, known = IdJournal.attach(data)
            for name in ("tenants", "spaces", "segments", "engines"):
                read, written = getattr(known, name), getattr(whole, name)
                assert read.items() <= written.items()
