"""What engines under load store: chains of blocks whose every byte follows from their key."""

from __future__ import annotations

import random
from functools import lru_cache
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from dataplane.client import Client
from tests.dataplane import factories as make

CHAINS = 300
MAX_CHAIN = 12
MAX_SMALL_CHAIN = 200
"""Chains of the smallest blocks are long: one request then fills many places of the same index buckets."""
SIZES = (4096, 5000, 12_288, 40_000, 65_536, 100_000, 262_144, 300_000)

_STEP = np.uint64(0x9E3779B97F4A7C15)


@lru_cache(maxsize=CHAINS)
def chain(number: int) -> tuple[list[bytes], int]:
    """Keys of a chain, and the size of its blocks in bytes."""
    rng = random.Random(number)
    size = rng.choice(SIZES)
    length = rng.randint(1, MAX_CHAIN if size > SIZES[0] else MAX_SMALL_CHAIN)
    return [sha256(b"%d/%d" % (number, at)).digest() for at in range(length)], size


def pick(rng: random.Random) -> int:
    """A chain's number, skewed so that some are asked again and again."""
    return int(CHAINS * rng.random() ** 2.5)


def expected(key: bytes, nbytes: int) -> npt.NDArray[np.uint8]:
    """The bytes of a block: each 8-byte word depends on the key and on its position."""
    seed = np.uint64(int.from_bytes(key[:8], "little") | 1)
    words = np.arange(1, (nbytes + 7) // 8 + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        words = (words * _STEP) ^ (words * seed)
    return words.view(np.uint8)[:nbytes]


def fill(client: Client, name: object, count: int = 16) -> None:
    """Store blocks of a megabyte, of which none may be refused: sixteen fill a pool of 16 MiB."""
    for number in range(count):
        with client.reserve([make.key((name, number))], make.MIB) as reservation:
            assert reservation.refused == {}
            assert reservation.commit().blocks == 1
