"""The start of a disk tier with 100 GiB of 2 MiB blocks: by its journal, and by the headers of all slots.

The segments are sparse files, in which only headers were written: a scan reads the same pages as on a full disk, but
from files with more extents.
"""

import os
import tempfile
from time import monotonic, perf_counter
from unittest.mock import patch

from benchmarks.harness.memory import MiB
from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import FULL, Setting
from benchmarks.tiers.disk_files import name, opened
from dataplane.protocol.stored_blocks import Outcome, StoredBlock
from dataplane.tiers.disk.alignment import write_page
from dataplane.tiers.tier import BlockStore

BLOCK_BYTES = 2 * MiB
_BLOCKS = 51_200
_SEGMENT_BYTES = 1 << 30
_RESERVED_BYTES = 104 << 30


def run(setting: Setting) -> list[Result]:
    """Seconds until the tier answers; both ways must find all blocks."""
    blocks = _BLOCKS if setting.effort == FULL else _BLOCKS // 50
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as folder:
        _fill(folder, blocks)
        start_times = [_start(folder, blocks)]
        os.unlink(f"{folder}/journal")
        start_times += [_start(folder, blocks)]
    size = f"{blocks * BLOCK_BYTES / (1 << 30):.0f}GiB"
    return [
        at_most(f"tier_recovery_journal_{size}", start_times[0], "s", None),
        at_most(f"tier_recovery_scan_{size}", start_times[1], "s", 10.0),
    ]


def _fill(folder: str, blocks: int) -> None:
    data = memoryview(bytearray(BLOCK_BYTES))
    with (
        patch("os.posix_fallocate", lambda fd, _, size: os.ftruncate(fd, size)),
        patch("dataplane.tiers.disk.disk_tier.DiskDirectory.measure", lambda self: _RESERVED_BYTES),
        patch(
            "dataplane.tiers.disk.directory.write_slots",
            lambda fd, offset, slots, slot_bytes, *, direct: write_page(fd, offset, slots[0][0]),
        ),
        opened(folder, budget_bytes=_RESERVED_BYTES, segment_bytes=_SEGMENT_BYTES) as tier,
    ):
        for number in range(blocks):
            block = StoredBlock(name(number), f"tenant {number % 100}", number + 1, BLOCK_BYTES, b"c" * 16)
            if tier.store([BlockStore(block, data)], monotonic() + 600) != [Outcome.OK]:
                raise RuntimeError(f"block {number} was not stored")


def _start(folder: str, blocks: int) -> float:
    started = perf_counter()
    with opened(folder, budget_bytes=_RESERVED_BYTES, segment_bytes=_SEGMENT_BYTES) as tier:
        started_s = perf_counter() - started
        if tier.usage().blocks != blocks:
            raise RuntimeError(f"expected {blocks} blocks, found {tier.usage().blocks}")
    return started_s
