"""A slot that could not be erased is erased again, before the tier reports that its block is deleted."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.disk.segment_file import SegmentFile
from tests.tiers.blocks import assert_holds, assert_lacks, block, name, soon, store
from tests.tiers.disk_backend import DiskBackend

LENGTH = 5000


@pytest.fixture
def backend(tmp_path: Path) -> DiskBackend:
    return DiskBackend(tmp_path / "one")


@pytest.fixture
def mend(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """No slot can be erased until this is called."""
    real = SegmentFile.erase

    def failing(segment: SegmentFile, slot: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(SegmentFile, "erase", failing)
    return lambda: monkeypatch.setattr(SegmentFile, "erase", real)


@pytest.mark.parametrize("scanned", [False, True])
def test_a_block_is_deleted_once_its_slot_is_erased(
    backend: DiskBackend, mend: Callable[[], None], scanned: bool
) -> None:
    tier = backend.open()
    stored = block(1, LENGTH)
    store(tier, stored)
    for _ in range(3):
        assert tier.delete([name(1)], soon()) == [Outcome.FAILED]
    assert_lacks(tier, [stored])
    mend()
    assert tier.delete([name(1)], soon()) == [Outcome.OK]
    assert tier.usage().stored_bytes == 0
    tier.close()
    assert_lacks(backend.scanned() if scanned else backend.open(), [stored])


def test_a_failed_deletion_is_repeated_without_a_fault_of_the_directory(
    backend: DiskBackend, mend: Callable[[], None]
) -> None:
    tier = backend.open()
    store(tier, block(1, LENGTH))
    tier.delete([name(1)], soon())
    assert tier.health(soon()).ok
    assert tier.delete([name(1)], soon()) == [Outcome.FAILED]
    stored = block(2, LENGTH)
    assert store(tier, stored) == [Outcome.OK], "one slot that cannot be erased does not stop the directory"
    assert_holds(tier, [stored])


def test_a_name_given_twice_is_erased_once(backend: DiskBackend, mend: Callable[[], None]) -> None:
    tier = backend.open()
    store(tier, *(block(number, LENGTH) for number in (1, 2)))
    names = [name(1)] * 4 + [name(2)] * 4
    assert Outcome.FAILED in tier.delete(names, soon())
    mend()
    assert tier.delete(names, soon()) == [Outcome.OK] * 8
    assert tier.usage().stored_bytes == 0
    assert tier.health(soon()).ok
    again = [block(number, LENGTH) for number in range(10, 20)]
    store(tier, *again)
    assert_holds(tier, again)


def test_an_older_block_that_could_not_be_erased_is_deleted_with_the_newer_one(
    backend: DiskBackend, mend: Callable[[], None]
) -> None:
    tier = backend.open()
    older, newer = block(1, LENGTH), block(1, LENGTH)
    store(tier, older)
    assert store(tier, newer) == [Outcome.OK]
    assert tier.delete([name(1)], soon()) == [Outcome.FAILED]
    mend()
    assert tier.delete([name(1)], soon()) == [Outcome.OK]
    tier.close()
    assert_lacks(backend.scanned(), [newer])


def test_a_block_whose_write_failed_is_erased_by_a_deletion(
    backend: DiskBackend, mend: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = backend.open()
    real = os.pwritev

    def written_and_failed(*arguments: Any) -> int:
        real(*arguments)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    store(tier, block(2, LENGTH))
    monkeypatch.setattr(os, "pwritev", written_and_failed)
    stored = block(1, LENGTH)
    assert store(tier, stored) == [Outcome.FAILED]
    monkeypatch.setattr(os, "pwritev", real)
    assert tier.delete([name(1)], soon()) == [Outcome.FAILED]
    mend()
    assert tier.delete([name(1)], soon()) == [Outcome.OK]
    tier.close()
    assert_lacks(backend.scanned(), [stored])


def test_a_stale_block_that_the_start_could_not_erase_is_deleted_with_the_newer_one(
    tmp_path: Path, mend: Callable[[], None]
) -> None:
    one = DiskBackend(tmp_path / "one")
    tier = one.open()
    older, newer = block(1, LENGTH), block(1, LENGTH)
    store(tier, older, newer)
    tier.close()
    tier = one.scanned()
    assert_holds(tier, [newer])
    assert tier.delete([name(1)], soon()) == [Outcome.FAILED]
    mend()
    assert tier.delete([name(1)], soon()) == [Outcome.OK]
    tier.close()
    assert_lacks(one.scanned(), [newer])
