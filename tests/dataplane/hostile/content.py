"""What honest engines store: blocks whose every byte follows from their key."""

from __future__ import annotations

from functools import lru_cache

from dataplane.client import Client
from tests.dataplane import factories as make
from tests.dataplane.plane import contents

NBYTES = 16 << 10
CHAINS = 300


@lru_cache(maxsize=CHAINS)
def chain(number: int) -> list[bytes]:
    """Keys of an honest chain: 1 to 8 blocks."""
    return make.keys(1 + number % 8, ("honest", number))


@lru_cache(maxsize=CHAINS)
def expected(number: int) -> list[bytes]:
    """The bytes of each block of a chain."""
    return contents(chain(number), NBYTES)


def fill(client: Client, name: object, count: int = 16) -> None:
    """Store blocks of a megabyte, of which none may be refused: sixteen fill a pool of 16 MiB."""
    for number in range(count):
        with client.reserve([make.key((name, number))], make.MIB) as reservation:
            assert reservation.refused == {}
            assert reservation.commit().blocks == 1


def store(client: Client, number: int) -> int:
    """Store what is missing of a chain; published blocks."""
    with client.reserve(chain(number), NBYTES, tenant=f"t{number % 3}") as reservation:
        reservation.copy_from(b"".join(expected(number)))
        return reservation.commit().blocks


def read(client: Client, number: int) -> tuple[int, int]:
    """(blocks read, blocks that are not what was stored)."""
    with client.acquire(chain(number)) as lease:
        wrong = sum(bytes(lease.view(at)) != expected(number)[at] for at in range(len(lease)))
        return len(lease), wrong
