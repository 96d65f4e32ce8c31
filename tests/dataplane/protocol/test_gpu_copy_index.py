"""The table of GPU copies: what is read of it is a place of the block that was asked for, or none."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Literal

import numpy as np
import pytest

from dataplane.protocol.gpu_copies import (
    MAX_EXTENTS,
    R_EXTENTS,
    R_MAGIC,
    R_MAX_BLOCKS,
    R_MEMORY,
    R_VERSION,
    UNIT_BYTES,
    GpuCopyIndex,
    location_of,
    table_bytes,
)
from dataplane.protocol.layout import I64, U64, LayoutError

BLOCKS = 16
MEMORY = 12345
CONTROL = 0x1_0003


@pytest.fixture
def buffer() -> bytearray:
    return bytearray(table_bytes(BLOCKS))


@pytest.fixture
def table(buffer: bytearray) -> GpuCopyIndex:
    """The data plane's."""
    made = GpuCopyIndex(buffer, BLOCKS)
    made.format(MEMORY)
    return made


@pytest.fixture
def engine(table: GpuCopyIndex, buffer: bytearray) -> GpuCopyIndex:
    """An engine's view of it."""
    return GpuCopyIndex.attach(memoryview(buffer).toreadonly(), MEMORY)


def numbers(*each: int) -> I64:
    return np.array(each, np.int64)


def controls(*each: int) -> U64:
    return np.array(each, np.uint64)


def location(table: GpuCopyIndex, number: int, control: int = CONTROL) -> tuple[int, int]:
    extents, offsets = table.locations(numbers(number), controls(control))
    return int(extents[0]), int(offsets[0])


class TestLocations:
    def test_a_gpu_copy_is_where_it_was_shown(self, table: GpuCopyIndex, engine: GpuCopyIndex) -> None:
        table.show(0, CONTROL, location_of(1, 0))
        table.show(7, CONTROL + 1, location_of(2**32 - 1, UNIT_BYTES * (2**32 - 1)))
        extents, offsets = engine.locations(numbers(7, 3, 0), controls(CONTROL + 1, CONTROL, CONTROL))
        assert extents.tolist() == [2**32 - 1, 0, 1]
        assert offsets.tolist() == [UNIT_BYTES * (2**32 - 1), 0, 0]

    def test_a_block_of_another_incarnation_has_none(self, table: GpuCopyIndex, engine: GpuCopyIndex) -> None:
        table.show(3, CONTROL, location_of(1, UNIT_BYTES))
        assert location(engine, 3) == (1, UNIT_BYTES)
        for other in (0, CONTROL - 1, CONTROL + (1 << 16), CONTROL | 1 << 63, 2**64 - 1):
            assert location(engine, 3, other) == (0, 0)

    def test_withdrawn_gpu_copies_are_not_found(self, table: GpuCopyIndex, engine: GpuCopyIndex) -> None:
        for number in range(4):
            table.show(number, CONTROL, location_of(1, number * UNIT_BYTES))
        table.hide(numbers(0, 2))
        extents, offsets = engine.locations(np.arange(4), controls(*[CONTROL] * 4))
        assert extents.tolist() == [0, 1, 0, 1]
        assert offsets.tolist() == [0, UNIT_BYTES, 0, 3 * UNIT_BYTES]

    def test_between_two_stores_a_row_never_leads_to_the_gpu_copy_of_the_block_before(
        self, table: GpuCopyIndex, engine: GpuCopyIndex
    ) -> None:
        old, new = location_of(1, UNIT_BYTES), location_of(2, 0)
        table.show(3, CONTROL, old)  # its block goes, and is not hidden
        seen: list[tuple[int, int]] = []
        cells = table._cells

        class Watched:
            def __setitem__(self, at: int, value: int) -> None:
                cells[at] = value
                seen.append(location(engine, 3, CONTROL + 256))

        table._cells = Watched()  # type: ignore[assignment]
        table.show(3, CONTROL + 256, new)
        assert seen[-1] == (2, 0)
        assert set(seen[:-1]) == {(0, 0)}

    def test_unchanged_blocks_are_listed_at_every_moment(self, table: GpuCopyIndex, engine: GpuCopyIndex) -> None:
        table.list_extents([1, 2, 3])
        cells = table._cells

        class Watched:
            def __getitem__(self, at: int) -> int:
                return cells[at]

            def __setitem__(self, at: int, value: int) -> None:
                cells[at] = value
                assert {2, 3} <= set(engine.extents())

        table._cells = Watched()  # type: ignore[assignment]
        table.list_extents([5, 3, 2, 4])
        assert sorted(engine.extents()) == [2, 3, 4, 5]
        assert engine.changes == 1

    def test_no_block_has_a_gpu_copy_in_a_fresh_table(self, engine: GpuCopyIndex) -> None:
        extents, _ = engine.locations(np.arange(BLOCKS), controls(*[0] * BLOCKS))
        assert not extents.any()

    def test_a_location_changed_during_a_read_is_not_used(self, table: GpuCopyIndex, engine: GpuCopyIndex) -> None:
        """It moves between the two loads of the place; the control word is the same all along."""
        table.show(3, CONTROL, location_of(1, 0))
        moves: list[Callable[[], None]] = [
            lambda: table.show(3, CONTROL, location_of(2, UNIT_BYTES)),
            lambda: table.hide(numbers(3)),
        ]
        for move in moves:
            assert location(racing(engine, move), 3) == (0, 0)

    def test_a_location_reused_by_another_block_during_a_read_is_not_used(
        self, table: GpuCopyIndex, engine: GpuCopyIndex
    ) -> None:
        """The descriptor's block goes, and another one gets the same place; the lease is on the first one."""
        table.show(3, CONTROL, location_of(1, 0))

        def change() -> None:
            table.hide(numbers(3))
            table.show(3, CONTROL + (1 << 16), location_of(1, 0))

        assert location(racing(engine, change), 3) == (0, 0)

    def test_descriptors_beyond_the_table_read_nothing_beyond_it(
        self, table: GpuCopyIndex, engine: GpuCopyIndex
    ) -> None:
        table.show(BLOCKS - 1, CONTROL, location_of(1, 0))
        for number in (BLOCKS + 5, 1 << 40, -1):
            location(engine, number, CONTROL + 1)  # reads some word of the table, and stays within it
        assert location(engine, BLOCKS + 5, CONTROL + 1) == (0, 0)

    def test_any_words_decode_to_extents_and_offsets(self, table: GpuCopyIndex, engine: GpuCopyIndex) -> None:
        words = np.random.default_rng(0).integers(0, 2**64, 2 * BLOCKS, np.uint64, endpoint=False)
        table._words[:] = words
        extents, offsets = engine.locations(np.arange(BLOCKS), words[1::2])
        assert bool(((extents >= 0) & (extents < 2**32)).all())
        assert bool(((offsets >= 0) & (offsets < 2**32 * UNIT_BYTES)).all())
        assert bool((offsets % UNIT_BYTES == 0).all())
        assert extents.tolist() == (words[::2] >> np.uint64(32)).tolist()


def racing(table: GpuCopyIndex, change: Callable[[], None]) -> GpuCopyIndex:
    """The same table, that changes while it is read."""
    made = copy(table)
    words: Any = _Racing(table._words, change)
    made._words = words
    return made


class _Racing:
    """Words that change between the first load and the second."""

    def __init__(self, words: U64, change: Callable[[], None]) -> None:
        self.words = words
        self._change = change
        self._loads = 0

    def take(self, at: I64, mode: Literal["clip"]) -> U64:
        self._loads += 1
        if self._loads == 2:
            self._change()
        return self.words.take(at, mode=mode)


class TestExtents:
    def test_changes_are_counted_when_an_extent_goes_and_not_when_one_comes(
        self, table: GpuCopyIndex, engine: GpuCopyIndex
    ) -> None:
        before = engine.changes
        table.list_extents([3])
        table.list_extents([5, 3])
        assert (engine.extents(), engine.changes) == ([3, 5], before)
        table.list_extents([5])
        assert engine.extents() == [5]
        after = engine.changes
        assert after != before
        table.list_extents([7])
        assert engine.extents() == [7]
        assert engine.changes not in (before, after)
        table.list_extents([])
        assert engine.extents() == []

    def test_as_many_as_there_is_room_for_are_listed(self, table: GpuCopyIndex, engine: GpuCopyIndex) -> None:
        extents = list(range(1, MAX_EXTENTS + 1))
        table.list_extents(extents)
        assert engine.extents() == extents
        assert not table._words.any()  # the header ends where the rows begin
        assert len(table.header) >= R_EXTENTS + MAX_EXTENTS


class TestIdentityOfATable:
    def test_a_table_of_another_index_is_refused(self, table: GpuCopyIndex, buffer: bytearray) -> None:
        with pytest.raises(LayoutError, match="another index"):
            GpuCopyIndex.attach(buffer, MEMORY + 1)

    def test_another_layout_is_refused(self, table: GpuCopyIndex, buffer: bytearray) -> None:
        table.header[R_VERSION] = 2
        with pytest.raises(LayoutError, match="layout 2, expected 1"):
            GpuCopyIndex.attach(buffer, MEMORY)

    def test_an_invalid_table_is_refused(self, table: GpuCopyIndex, buffer: bytearray) -> None:
        table.header[R_MAGIC] = 0
        for wrong in (buffer, bytearray(8), bytearray(0), bytearray(4096)):
            with pytest.raises(LayoutError, match="not a table"):
                GpuCopyIndex.attach(wrong, MEMORY)

    @pytest.mark.parametrize("blocks", [BLOCKS + 512, 1 << 62, 2**64 - 1])
    def test_a_table_with_a_wrong_block_count_is_refused(
        self, table: GpuCopyIndex, buffer: bytearray, blocks: int
    ) -> None:
        table.header[R_MAX_BLOCKS] = blocks
        with pytest.raises(LayoutError, match="needs"):
            GpuCopyIndex.attach(buffer, MEMORY)

    def test_a_table_is_whole_before_its_magic_is_there(self, buffer: bytearray) -> None:
        made = GpuCopyIndex(buffer, BLOCKS)
        with pytest.raises(LayoutError, match="not a table"):
            GpuCopyIndex.attach(buffer, 0)
        made.format(MEMORY)
        assert GpuCopyIndex.attach(buffer, MEMORY).max_blocks == BLOCKS
        assert int(made.header[R_MEMORY]) == MEMORY
