"""A real data plane with an S3 tier that compresses: what is stored takes less room, and comes back on every node."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import obstore
import pytest

from dataplane.client import Client
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.control.records import encode_tiers
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.control.snapshots import Nack
from dataplane.protocol.spaces import Space
from dataplane.protocol.tiers import TierSpec
from dataplane.tiers.values import value_size
from tests.dataplane import blocks
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane
from tests.dataplane.tiering.chains import (
    BLOCKS,
    copied,
    disk_tier,
    in_service,
    known_tier,
    listed,
    load,
    move,
    push,
    push_out,
    s3_tier,
    set_credentials,
)
from tests.tiers.s3_server import BUCKET, S3Server, s3_server

NBYTES = 64 << 10
HEAD = 128
CHAIN, OTHER = make.keys(BLOCKS, "chain"), make.keys(BLOCKS, "other")
SPACE = Space(make.MODEL, dtype="bfloat16", block_bytes=NBYTES, head_size=HEAD)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def spec(server: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TierSpec:
    set_credentials(monkeypatch)
    return s3_tier(server, re.sub(r"\W", "-", request.node.name), load_deadline_s=60.0)


@pytest.fixture
def node(make_plane: Callable[..., Plane]) -> Callable[..., Plane]:
    """`node("a", *specs)`: a data plane with these tiers in service. Its pool has room for 64 blocks."""

    def new(name: str, *specs: TierSpec) -> Plane:
        plane = make_plane(dataplane__node=name, pool_bytes="4MiB").start()
        push(plane, 1, *specs)
        in_service(plane, *(spec.name for spec in specs))
        return plane

    return new


def with_codec(spec: TierSpec, compress: str) -> TierSpec:
    return msgspec.structs.replace(spec, compress=compress)


def connect(plane: Plane, space: Space = SPACE) -> Client:
    return blocks.connect(plane, space)


def content(key: bytes) -> bytes:
    """Return normally distributed numbers as bfloat16."""
    values = np.random.default_rng(list(key)).standard_normal(NBYTES // 2).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def store(client: Client, chain: Sequence[bytes], tenant: str = "") -> None:
    with client.reserve(chain, NBYTES, tenant=tenant) as reservation:
        for at in reservation.writable:
            reservation.view(at)[:] = bytearray(content(chain[at]))
        assert reservation.commit().blocks == len(chain)


def read(client: Client, chain: Sequence[bytes]) -> list[bytes]:
    with client.acquire(chain) as lease:
        return [bytes(lease.view(at)) for at in range(len(lease))]


def test_zstd_blocks_take_less_room_and_come_back_on_another_node(
    spec: TierSpec, server: S3Server, node: Callable[..., Plane]
) -> None:
    packed = with_codec(spec, "zstd")
    first, second = node("a", packed), node("b", spec)
    with connect(first) as one, connect(second) as two:
        store(one, CHAIN)
        copied(first, BLOCKS)
        found = known_tier(first)
        assert found.encodings == {"zstd": BLOCKS}
        assert found.logical_bytes == found.spilled_bytes == BLOCKS * NBYTES
        prefix = str(spec.parameters["url"]).removeprefix(f"s3://{BUCKET}/")
        objects = [meta for page in obstore.list(server.store(prefix)) for meta in page]
        assert sum(meta["size"] for meta in objects) == found.stored_bytes < 0.8 * found.logical_bytes
        load(two, CHAIN, BLOCKS)
        assert read(two, CHAIN) == [content(key) for key in CHAIN]
        assert known_tier(second).loaded_bytes == BLOCKS * NBYTES
        assert known_tier(second).load_bytes_per_s > 0


def test_a_change_of_compress_keeps_stored_blocks(spec: TierSpec, node: Callable[..., Plane]) -> None:
    plane = node("a", spec)
    with connect(plane) as client:
        store(client, CHAIN)
        copied(plane, BLOCKS)
        assert known_tier(plane).stored_bytes == BLOCKS * value_size(NBYTES)
        push(plane, 2, with_codec(spec, "zstd"))
        store(client, OTHER)
        copied(plane, 2 * BLOCKS)
        found = known_tier(plane)
        assert found.encodings == {"none": BLOCKS, "zstd": BLOCKS}
        assert found.stored_bytes < BLOCKS * value_size(NBYTES) + 0.8 * BLOCKS * value_size(NBYTES)
        for chain in (CHAIN, OTHER):
            push_out(client, chain)
        push(plane, 3, spec)
        for chain in (CHAIN, OTHER):
            load(client, chain, BLOCKS)
            assert read(client, chain) == [content(key) for key in chain]
        assert "corrupt" not in known_tier(plane).lost


def compressed(plane: Plane, scope: Scope | None = None) -> MoveState:
    """Encode what the tier holds again, and return the result."""
    return move(plane, Move("begin", scope or Scope(), "fast", compress=True))


def moved(plane: Plane, source: str, target: str) -> MoveState:
    """Move all blocks of a tier to another, and return the result."""
    return move(plane, Move("begin", Scope(tenant=""), target, release=True, source=source))


def test_blocks_of_a_tier_are_reencoded_on_request(spec: TierSpec, node: Callable[..., Plane]) -> None:
    plane = node("a", spec)
    with connect(plane) as client:
        for chain, tenant in ((CHAIN, "acme"), (OTHER, "zoo")):
            store(client, chain, tenant)
        copied(plane, 2 * BLOCKS)
        push(plane, 2, with_codec(spec, "zstd"))
        one = compressed(plane, Scope("acme"))
        assert (one.blocks, one.moved_blocks, one.refused) == (BLOCKS, BLOCKS, {})
        assert known_tier(plane).encodings == {"none": BLOCKS, "zstd": BLOCKS}
        rest = compressed(plane)
        assert (rest.blocks, rest.moved_blocks, rest.present_blocks) == (2 * BLOCKS, BLOCKS, BLOCKS)
        packed = known_tier(plane)
        assert packed.encodings == {"zstd": 2 * BLOCKS}
        assert packed.stored_bytes < 0.8 * packed.logical_bytes
        assert sum(each.bytes for each in packed.tenants) == packed.stored_bytes
        push(plane, 3, spec)
        back = compressed(plane)
        assert (back.moved_blocks, back.refused) == (2 * BLOCKS, {})
        assert known_tier(plane).encodings == {"none": 2 * BLOCKS}
        assert known_tier(plane).stored_bytes == 2 * BLOCKS * value_size(NBYTES)
        for chain in (CHAIN, OTHER):
            push_out(client, chain)
            load(client, chain, BLOCKS)
            assert read(client, chain) == [content(key) for key in chain]


def test_fp8_is_not_taken_by_blocks_of_unknown_form(spec: TierSpec, node: Callable[..., Plane]) -> None:
    space = msgspec.structs.replace(SPACE, head_size=0)
    plane = node("a", spec)
    with connect(plane, space) as client:
        store(client, CHAIN)
        copied(plane, BLOCKS)
        push(plane, 2, with_codec(spec, "fp8"))
        state = compressed(plane)
        assert (state.moved_blocks, state.refused) == (0, {"heads": BLOCKS})
        assert known_tier(plane).encodings == {"none": BLOCKS}


def test_fp8_blocks_take_half_the_room_and_come_back_with_a_small_error(
    spec: TierSpec, node: Callable[..., Plane]
) -> None:
    packed = with_codec(spec, "fp8")
    first, second = node("a", packed), node("b", spec)
    with connect(first) as one, connect(second) as two:
        store(one, CHAIN)
        copied(first, BLOCKS)
        count = NBYTES // 2
        assert known_tier(first).encodings == {"fp8": BLOCKS}
        assert known_tier(first).stored_bytes == BLOCKS * value_size(count + count // HEAD)
        load(two, CHAIN, BLOCKS)
        for key, data in zip(CHAIN, read(two, CHAIN), strict=True):
            before, after = (
                (np.frombuffer(each, np.uint16).astype(np.uint32) << 16).view(np.float32)
                for each in (content(key), data)
            )
            assert not np.array_equal(before, after)
            assert np.abs(after - before).max() <= np.abs(before).max() / 16
        assert "corrupt" not in known_tier(second).lost


@pytest.mark.parametrize("compress", ["zstd", "fp8"])
def test_a_restart_counts_blocks_as_they_are_encoded(spec: TierSpec, node: Callable[..., Plane], compress: str) -> None:
    packed = with_codec(spec, compress)
    plane = node("a", packed)
    with connect(plane) as client:
        store(client, CHAIN)
        copied(plane, BLOCKS)
        before = known_tier(plane)
    plane.kill()
    plane.start()
    after = listed(plane)
    assert (after.encodings, after.stored_bytes) == (before.encodings, before.stored_bytes)
    assert after.logical_bytes == before.logical_bytes


@pytest.mark.parametrize("compress", ["zstd", "fp8"])
def test_blocks_that_move_between_tiers_are_encoded_for_the_target(
    spec: TierSpec, node: Callable[..., Plane], tmp_path: Path, compress: str
) -> None:
    packed = msgspec.structs.replace(with_codec(spec, compress), spill="off", order=1)
    plane = node("a", disk_tier(tmp_path, "disk"), packed)
    with connect(plane) as client:
        store(client, CHAIN)
        copied(plane, BLOCKS, "disk")
        assert moved(plane, "disk", "fast").moved_blocks == BLOCKS
        assert known_tier(plane).encodings == {compress: BLOCKS}
        assert known_tier(plane).stored_bytes < 0.8 * known_tier(plane).logical_bytes
        push_out(client, CHAIN)
        disk = known_tier(plane, "disk")
        assert moved(plane, "fast", "disk").moved_blocks == BLOCKS
        load(client, CHAIN, BLOCKS)
        exact = read(client, CHAIN) == [content(key) for key in CHAIN]
        assert exact == (compress == "zstd")
        assert all("corrupt" not in each.lost for each in (known_tier(plane), disk))


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        (msgspec.structs.replace(SPACE, head_size=0), "heads"),
        (msgspec.structs.replace(SPACE, dtype="fp8_e4m3"), "dtype"),
    ],
)
def test_blocks_that_fp8_cannot_encode_are_stored_as_they_are_and_counted(
    spec: TierSpec, node: Callable[..., Plane], space: Space, reason: str
) -> None:
    plane = node("a", with_codec(spec, "fp8"))
    with connect(plane, space) as client:
        store(client, CHAIN)
        copied(plane, BLOCKS)
        stats = known_tier(plane)
        assert (stats.encodings, stats.not_compressed) == ({"none": BLOCKS}, {reason: BLOCKS})
        push_out(client, CHAIN)
        load(client, CHAIN, BLOCKS)
        assert read(client, CHAIN) == [content(key) for key in CHAIN]


def test_a_node_refuses_to_compress_in_a_type_without_codecs(plane: Plane, tmp_path: Path) -> None:
    disk = disk_tier(tmp_path / "disk", compress="zstd")
    with plane.manager() as manager:
        answer = manager.push(make.snapshot("tiers", encode_tiers([disk]), 2))
    assert isinstance(answer, Nack), answer
    assert [(fault.path, fault.message) for fault in answer.errors] == [
        ("tiers[0].compress", "expected none: tiers of the type disk cannot compress with zstd")
    ]
