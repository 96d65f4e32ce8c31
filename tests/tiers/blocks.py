"""Blocks for tests of tiers: names, data that follows from a seed, and calls with a bounded deadline."""

import itertools
import random
from collections.abc import Sequence
from time import monotonic

import msgspec
import numpy as np

from dataplane.protocol.checksums import checksum
from dataplane.protocol.stored_blocks import BlockName, Loaded, Outcome, StoredBlock, writer_number
from dataplane.tiers.tier import BlockLoad, BlockStore, Tier

CLUSTER = b"cluster of tests"
OTHER_CLUSTER = b"another cluster!"
SPACE = b"space-of-a-model"
WAIT_S = 120.0
"""Deadline of calls that are to succeed, far above what a slow machine takes."""
sequences = itertools.count(1)


def soon() -> float:
    return monotonic() + WAIT_S


def name(number: int, space: bytes = SPACE) -> BlockName:
    return BlockName(space, number.to_bytes(32, "big"))


def block(number: int, length: int, tenant: str = "acme", sequence: int = 0) -> BlockStore:
    """Return a block whose data follows from its name and sequence."""
    sequence = sequence or next(sequences)
    data = contents(name(number), sequence, length)
    return BlockStore(
        StoredBlock(
            name(number), tenant, sequence, length, checksum(data), name(number - 1).key if number > 1 else b""
        ),
        data,
    )


def written_by(stored: BlockStore, node: str) -> BlockStore:
    """Return a block as the node of that name writes it to a shared tier."""
    return BlockStore(msgspec.structs.replace(stored.block, writer=writer_number(node)), stored.data)


def contents(of: BlockName, sequence: int, length: int) -> bytes:
    """Return bytes of which every second one varies little, as in numbers of two bytes."""
    noise = random.Random(of.key + sequence.to_bytes(8, "big")).randbytes(length)
    data = np.frombuffer(noise, np.uint8).copy()
    data[1::2] = data[1::2] & 7 | 8
    return data.tobytes()


def store(tier: Tier, *stores: BlockStore) -> list[Outcome]:
    return tier.store(stores, soon())


def load(tier: Tier, stored: BlockStore) -> tuple[Loaded, bytes]:
    """Load a block under the name and with the length of another, and return the outcome and the memory."""
    memory = bytearray(stored.block.length)
    (loaded,) = tier.load([BlockLoad(stored.block.name, memoryview(memory))], soon())
    return loaded, bytes(memory)


def assert_holds(tier: Tier, stores: Sequence[BlockStore]) -> None:
    """Each of the blocks is found and loaded, and has the bytes that were stored."""
    assert tier.lookup([each.block.name for each in stores], soon()) == [each.block for each in stores]
    for each in stores:
        loaded, data = load(tier, each)
        assert loaded == Loaded(Outcome.OK, each.block)
        assert data == each.data


def listed(tier: Tier) -> list[StoredBlock]:
    """Return the blocks that a tier lists, without their encodings."""
    return [msgspec.structs.replace(each, encoding=None) for each in tier.blocks()]


def assert_lacks(tier: Tier, stores: Sequence[BlockStore]) -> None:
    """No block is found or loaded under these names."""
    assert tier.lookup([each.block.name for each in stores], soon()) == [None] * len(stores)
    found = [load(tier, each)[0] for each in stores]
    assert found == [Loaded(Outcome.MISSING)] * len(stores), found
