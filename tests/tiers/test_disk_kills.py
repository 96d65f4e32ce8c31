"""A process that is killed while it writes loses no block that was acknowledged, and leaves no wrong byte."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.disk.disk_tier import DiskTier
from tests.forked import Forked
from tests.sizes import size
from tests.tiers.blocks import block, load, name, soon
from tests.tiers.disk_backend import DiskBackend, state
from tests.tiers.disk_writer import BUDGET_BYTES, backend

KILLS = 5
Version = tuple[int, int]
"""Sequence and length of a block; (0, 0) for none."""
NONE: Version = (0, 0)


@pytest.mark.parametrize("seed", range(size(4, 2)))
def test_a_kill_loses_no_acknowledged_block(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    killed = backend(tmp_path / "one", tmp_path / "two")
    copy = backend(tmp_path / "copy-one", tmp_path / "copy-two")
    acknowledged: dict[int, Version] = {}
    operations = 0
    for kill in range(KILLS):
        begun = _killed(killed, 1 + kill * 1_000_000, choice.randrange(10, 300), acknowledged)
        operations += len(acknowledged)
        for source, target in zip(killed.directories, copy.directories, strict=True):
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
        tier = killed.open()
        try:
            assert [each.recovered_by for each in tier._directories] == ["", ""]
            _check(tier, acknowledged, begun)
            assert tier.usage().stored_bytes <= killed.segment_bytes_on_disk() <= BUDGET_BYTES
            from_journal = state(tier)
            _load_all(tier, acknowledged, begun)
        finally:
            tier.close()
        scanned = copy.scanned()
        try:
            assert state(scanned) == from_journal
        finally:
            scanned.close()
    assert operations > KILLS


def _killed(killed: DiskBackend, first: int, lines: int, acknowledged: dict[int, Version]) -> dict[int, Version]:
    """Run a writer until it has written so many lines and is killed. Update what it acknowledged, and return what it
    was doing."""
    begun: dict[int, Version] = {}
    folders = map(str, killed.directories)
    with Forked(
        "tests.tiers.disk_writer", str(first), *folders, env=dict(os.environ), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for count, line in enumerate(process.stdout, 1):
                what, number, *version = line.split()
                sequence, length = map(int, version)
                if what == "begin":
                    begun[int(number)] = sequence, length
                else:
                    del begun[int(number)]
                    if what == "end":
                        acknowledged[int(number)] = sequence, length
                if count == lines:
                    process.kill()
        finally:
            process.kill()
        assert process.wait(60) == -9
    return begun


def _check(tier: DiskTier, acknowledged: dict[int, Version], begun: dict[int, Version]) -> None:
    """What was acknowledged is there, except where another operation on it had begun."""
    for number in {*acknowledged, *begun}:
        (found,) = tier.lookup([name(number)], soon())
        version = (found.sequence, found.length) if found else NONE
        possible = {acknowledged.get(number, NONE)} | ({begun[number]} if number in begun else set())
        assert version in possible, number


def _load_all(tier: DiskTier, acknowledged: dict[int, Version], begun: dict[int, Version]) -> None:
    """Every block that is there has its bytes; one that was being written may be refused. Remember what is there."""
    for number in {*acknowledged, *begun}:
        (found,) = tier.lookup([name(number)], soon())
        acknowledged[number] = NONE
        if found is None:
            continue
        expected = block(number, found.length, sequence=found.sequence)
        loaded, data = load(tier, expected)
        if loaded.outcome is Outcome.OK:
            assert data == expected.data
            acknowledged[number] = found.sequence, found.length
        else:
            assert number in begun
            assert loaded.outcome is Outcome.CORRUPT
