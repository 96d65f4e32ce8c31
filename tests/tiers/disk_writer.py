"""A process that stores, replaces and deletes blocks until it is killed: `python -m tests.tiers.disk_writer FIRST
DIRECTORY…`. It writes a line before and after each operation."""

import os
import random
import sys
import threading
from pathlib import Path

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.disk import slot_journal
from dataplane.tiers.disk.disk_tier import DiskTier
from tests.tiers.blocks import block, name, soon, store
from tests.tiers.disk_backend import MIB, DiskBackend

THREADS = 4
NAMES = 8
LENGTHS = (4096, 30_000, 250_000)
SEGMENT_BYTES = MIB
BUDGET_BYTES = 16 * MIB


def backend(*directories: Path) -> DiskBackend:
    return DiskBackend(*directories, budget_bytes=BUDGET_BYTES, segment_bytes=SEGMENT_BYTES)


def main() -> None:
    first = int(sys.argv[1])
    slot_journal._MIN_COMPACTED_BYTES = 4096  # so that kills meet new checkpoints
    tier = backend(*map(Path, sys.argv[2:])).open()
    threads = [threading.Thread(target=_work, args=(tier, first, number)) for number in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(300)  # until this process is killed


def _work(tier: DiskTier, first: int, thread: int) -> None:
    choice = random.Random(first * 100 + thread)
    sequence = first + thread
    while True:
        number = 100 * thread + choice.randrange(NAMES)
        sequence += THREADS
        if choice.random() < 0.25:
            _say("begin", number, 0, 0)
            assert tier.delete([name(number)], soon()) == [Outcome.OK]
            _say("end", number, 0, 0)
        else:
            stored = block(number, choice.choice(LENGTHS), sequence=sequence)
            _say("begin", number, sequence, stored.block.length)
            (outcome,) = store(tier, stored)
            _say("end" if outcome is Outcome.OK else outcome.value, number, sequence, stored.block.length)


def _say(what: str, number: int, sequence: int, length: int) -> None:
    os.write(1, f"{what} {number} {sequence} {length}\n".encode())


if __name__ == "__main__":
    main()
