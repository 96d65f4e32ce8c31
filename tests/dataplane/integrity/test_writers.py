"""What a commit says of the bytes it publishes."""

from __future__ import annotations

import numpy as np
import pytest

from dataplane.protocol.checksums import NONE, Checksum, checksum
from tests.dataplane import factories as make
from tests.dataplane.integrity.faulty_memory import checksum_in_index
from tests.dataplane.plane import Plane, contents
from tests.dataplane.recovery.support.blocks import connect

PAGE = 4096


def test_copied_blocks_carry_the_checksum_of_their_bytes(plane: Plane) -> None:
    with connect(plane, verify="always") as client:
        for nbytes in (1, PAGE, 64 << 10, (512 << 10) - 1, 512 << 10, (512 << 10) + 1, 1_500_000):
            chain = make.keys(7, nbytes)
            data = np.random.default_rng(nbytes).integers(0, 256, 7 * nbytes, np.uint8)
            with client.reserve(chain[2:4], nbytes) as hole:  # the rest is no run of neighbours
                hole.copy_from(data[2 * nbytes : 4 * nbytes])
                hole.commit()
            with client.reserve(chain, nbytes) as reservation:
                assert reservation.copy_from(data) == 5 * nbytes
                assert reservation.commit().blocks == 5
            for at, key in enumerate(chain):
                assert checksum_in_index(client, key) == checksum(data[at * nbytes : (at + 1) * nbytes])
            with client.acquire(chain) as lease:
                assert len(lease) == 7
                assert b"".join(bytes(lease.view(at)) for at in range(7)) == data.tobytes()


def test_blocks_filled_through_views_are_summed_at_commit_also_after_a_copy(plane: Plane) -> None:
    chain = make.keys(3)
    with connect(plane, verify="always") as client:
        with client.reserve(chain, PAGE) as reservation:
            early = reservation.view(0)
            reservation.copy_from(b"".join(contents(chain, PAGE)))
            early[:4] = b"past"
            reservation.array(2)[:4] = 7
            reservation.commit()
        with client.acquire(chain) as lease:
            assert len(lease) == 3
            assert bytes(lease.view(0)[:4]) == b"past"
            assert bytes(lease.view(2)[:4]) == b"\7\7\7\7"
            assert [checksum_in_index(client, key) for key in chain] == [checksum(lease.view(at)) for at in range(3)]


def test_only_published_positions_are_summed(plane: Plane) -> None:
    chain = make.keys(4)
    with connect(plane, verify="always") as client:
        with client.reserve(chain, PAGE) as reservation:
            reservation.copy_from(b"".join(contents(chain, PAGE)))
            assert reservation.commit([3, 1]).blocks == 2
        for at in (1, 3):
            assert checksum_in_index(client, chain[at]) == checksum(contents(chain, PAGE)[at])
            assert len(client.acquire(chain[at : at + 1])) == 1


def test_given_checksums_are_taken_as_they_are(plane: Plane) -> None:
    chain = make.keys(3)
    right = [checksum(each) for each in contents(chain, PAGE)]
    with connect(plane, verify="always") as client:
        with client.reserve(chain, PAGE) as reservation:
            reservation.copy_from(b"".join(contents(chain, PAGE)))
            reservation.commit(checksums=[right[0], NONE, bytes(15) + b"\x01"])
        assert checksum_in_index(client, chain[1]) == NONE
        with client.acquire(chain) as lease:
            assert len(lease) == 2, "none is never wrong, and a wrong one always is"
        assert plane.describe().totals.corrupt_blocks == 1


def test_without_checksums_blocks_are_read(plane: Plane) -> None:
    chain = make.keys(2)
    with connect(plane, checksums=False, verify="always") as client:
        with client.reserve(chain, PAGE) as reservation:
            reservation.copy_from(b"".join(contents(chain, PAGE)))
            reservation.commit()
        assert [checksum_in_index(client, key) for key in chain] == [NONE, NONE]
        assert len(client.acquire(chain)) == 2


def test_a_commit_of_nothing_sums_nothing(plane: Plane) -> None:
    chain = make.keys(2)
    with connect(plane) as client:
        reservation = client.reserve(chain, PAGE)
        assert reservation.commit([]).blocks == 0
        assert reservation.commit().blocks == 0
        with client.reserve(chain, PAGE) as again:
            assert again.commit().blocks == 2
        assert client.reserve(chain, PAGE).commit().blocks == 0, "all are there"


def test_a_checksum_is_never_the_value_for_none() -> None:
    pieces = Checksum()
    assert pieces.digest() == checksum(b"")
    for size in (0, 1, 16, 17, 240, 241, PAGE):
        data = bytes(size)
        pieces = Checksum()
        pieces.update(data[: size // 3])
        pieces.update(data[size // 3 :])
        assert pieces.digest() == checksum(data) != NONE
        assert len(checksum(data)) == 16


def test_a_digest_that_happens_to_be_zero_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xxhash.xxh3_128_digest", lambda data: bytes(16))
    assert checksum(b"x") == b"\x01" + bytes(15)
