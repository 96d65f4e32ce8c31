"""Deleted blocks do not come back when the machine loses power, once a sync has reported success."""

import errno
import os
from math import inf
from pathlib import Path

import pytest

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.disk.disk_tier import DiskTier
from dataplane.tiers.tier import TierError
from tests.tiers.blocks import assert_holds, assert_lacks, block, name, soon, store
from tests.tiers.disk_backend import MIB, SEGMENT_BYTES, DiskBackend
from tests.tiers.erasure_cache import ErasureCache

LENGTH = 5000


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> ErasureCache:
    return ErasureCache(monkeypatch)


@pytest.fixture
def backend(tmp_path: Path, cache: ErasureCache) -> DiskBackend:
    return DiskBackend(tmp_path / "one", direct_io="off")


def _opened_after_loss(backend: DiskBackend, cache: ErasureCache, tier: DiskTier) -> DiskTier:
    """Open the tier as after a loss of power: its journal, of another boot, is not used."""
    tier.close()
    cache.lose_power()
    return backend.scanned()


def test_a_deleted_block_comes_back_after_a_loss_of_power_unless_it_was_synced(
    backend: DiskBackend, cache: ErasureCache
) -> None:
    tier = backend.open()
    blocks = [block(number, LENGTH) for number in range(1, 4)]
    store(tier, *blocks)
    assert tier.delete([name(1)], soon()) == [Outcome.OK]
    assert tier.sync(soon()) is Outcome.OK
    assert tier.delete([name(2)], soon()) == [Outcome.OK]
    tier = _opened_after_loss(backend, cache, tier)
    assert_lacks(tier, blocks[:1])
    assert_holds(tier, blocks[1:])


def test_only_segments_with_erased_slots_are_synced(backend: DiskBackend, cache: ErasureCache) -> None:
    tier = backend.open()
    store(tier, block(1, LENGTH), block(2, MIB))
    assert tier.sync(soon()) is Outcome.OK
    assert cache.synced == []
    tier.delete([name(2)], soon())
    assert [tier.sync(soon()) for _ in range(2)] == [Outcome.OK] * 2
    assert len(cache.synced) == 1


def test_what_was_deleted_before_the_start_is_synced(backend: DiskBackend, cache: ErasureCache) -> None:
    tier = backend.open()
    stored = block(1, LENGTH)
    store(tier, stored)
    tier.delete([name(1)], soon())
    tier.close()
    tier = backend.open()
    assert tier.sync(soon()) is Outcome.OK
    assert_lacks(_opened_after_loss(backend, cache, tier), [stored])


def test_an_older_block_that_a_newer_one_replaced_is_synced(backend: DiskBackend, cache: ErasureCache) -> None:
    tier = backend.open()
    older, newer = block(1, LENGTH), block(1, LENGTH)
    store(tier, older)
    store(tier, newer)
    tier.delete([name(1)], soon())
    assert tier.sync(soon()) is Outcome.OK
    assert_lacks(_opened_after_loss(backend, cache, tier), [older, newer])


def test_a_sync_goes_on_where_its_deadline_ended_it(backend: DiskBackend, cache: ErasureCache) -> None:
    tier = backend.open()
    store(tier, block(1, LENGTH))
    tier.delete([name(1)], soon())
    assert tier.sync(-inf) is Outcome.LATE
    assert cache.headers
    assert tier.sync(soon()) is Outcome.OK
    assert not cache.headers


def test_a_device_that_does_not_sync_is_reported(backend: DiskBackend, cache: ErasureCache) -> None:
    tier = backend.open()
    store(tier, block(1, LENGTH))
    tier.delete([name(1)], soon())
    cache.error = errno.EIO
    assert tier.sync(soon()) is Outcome.FAILED
    with pytest.raises(TierError, match="sync failed: Input/output error"):
        store(tier, block(2, LENGTH))


def test_a_directory_that_was_left_out_is_not_synced(tmp_path: Path, cache: ErasureCache) -> None:
    backend = DiskBackend(tmp_path / "one", tmp_path / "file")
    (tmp_path / "file").touch()
    tier = backend.open()
    assert tier.health(soon()).reason.startswith(f"{tmp_path}/file: cannot be opened")
    assert tier.sync(soon()) is Outcome.FAILED


def test_segments_that_a_smaller_budget_removes_are_synced(
    backend: DiskBackend, cache: ErasureCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tier = backend.open()
    store(tier, *(block(number, MIB) for number in range(1, 8)))
    tier.close()
    real = os.fsync
    segments: list[int] = []
    """Number of them at each sync of the directory."""

    def fsync(fd: int) -> None:
        folder = tmp_path / "one"
        if os.readlink(f"/proc/self/fd/{fd}") == str(folder):
            segments.append(len(list(folder.glob("segment-*"))))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    tier = backend.open(budget_bytes=SEGMENT_BYTES)
    assert segments == [1]
    assert tier.sync(soon()) is Outcome.OK
