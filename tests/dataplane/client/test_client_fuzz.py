"""Whatever a data plane answers, the engine's client neither raises nor reads what is not a block."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from dataplane.client import attach
from dataplane.protocol import engine as wire
from dataplane.protocol.codec import encode
from dataplane.protocol.layout import H_ADOPTED_NS
from tests.dataplane import factories as make
from tests.dataplane.broken_plane import SEGMENT, BrokenPlane, memory, use

KEYS = make.keys(4)
NBYTES = 4096
EXAMPLES = 40
REPLIES = get_args(wire.EngineReply)


@pytest.fixture
def broken(socket_dir: Path) -> Iterator[Callable[..., BrokenPlane]]:
    made: list[BrokenPlane] = []

    def new(**options: Any) -> BrokenPlane:
        folder = socket_dir / str(len(made))
        folder.mkdir()
        made.append(BrokenPlane(folder, **options))
        return made[-1]

    yield new
    for each in made:
        each.close()


def right_answer(request: Any) -> tuple[Any, list[int]]:
    """What a data plane would say."""
    number = request.id
    if isinstance(request, wire.Reserve):
        keys = len(request.keys) // 32
        offsets = b"".join((NBYTES * at).to_bytes(8, "little") for at in range(keys))
        grant = wire.SegmentGrant(1, SEGMENT, True)
        segments = (1).to_bytes(4, "little") * keys
        return wire.Reserved(number, 7, bytes(keys), segments, offsets, [grant]), [memory(SEGMENT)]
    if isinstance(request, wire.Map):
        grants = [wire.SegmentGrant(segment, SEGMENT, False) for segment in request.segments]
        return wire.SegmentsMapped(number, grants), [memory(SEGMENT) for _ in grants]
    if isinstance(request, wire.Commit):
        return wire.BlocksCommitted(number, 4), []
    if isinstance(request, wire.LeaseRequest):
        return wire.Leased(number, (3).to_bytes(4, "little")), []
    if isinstance(request, wire.Report):
        return wire.Reported(number, 1), []
    return wire.Aborted(number), []


def wrong_answer(rng: random.Random, request: Any) -> tuple[Any, list[int]] | bytes | None:
    """Something else: another kind, wild values, damaged bytes, other descriptors, or nothing."""
    message, fds = right_answer(request)
    choice = rng.randrange(6)
    if choice == 0 or rng.random() < 0.5:
        return message, fds
    if choice != 4 and choice != 5:
        for fd in fds:
            os.close(fd)
    if choice == 1:
        fields = [anything(rng) for _ in range(rng.randint(0, 8))]
        tag = rng.choice(REPLIES).__struct_config__.tag
        return msgspec.msgpack.encode([tag, rng.choice([request.id, anything(rng)]), *fields])
    if choice == 2:
        data = bytearray(encode(message))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data[: rng.randint(1, len(data))] if rng.random() < 0.3 else data)
    if choice == 3:
        return rng.randbytes(rng.randint(1, 200))
    if choice == 4:
        changed = {
            field.name: wild(rng, getattr(message, field.name))
            for field in msgspec.structs.fields(message)
            if rng.random() < 0.4
        }
        return msgspec.structs.replace(message, **{**changed, "id": request.id}), fds
    if rng.random() < 0.1:
        return None
    for fd in fds:  # less memory than it says
        os.close(fd)
    return message, [memory(SEGMENT // 2) for _ in fds]


def anything(rng: random.Random) -> object:
    return rng.choice([None, True, -1, 0, 1, 2**63, 1.5, "x", b"", rng.randbytes(8), rng.randbytes(32), [], [1]])


def wild(rng: random.Random, value: object) -> object:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([-1, 0, 1, 2**31, 2**32 - 1, 2**32, 2**62])
    if isinstance(value, bytes):
        return rng.choice([b"", rng.randbytes(len(value)), value[:-1], value * 2, b"\xff" * len(value)])
    if isinstance(value, list):
        return rng.choice([[], value * 2, value[:-1]])
    return value


@pytest.mark.parametrize("membarrier", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_no_answer_raises_in_the_engine(broken: Callable[..., BrokenPlane], seed: int, membarrier: bool) -> None:
    rng = random.Random(seed)
    kinds = set()
    for _ in range(EXAMPLES):
        plane = broken(membarrier=membarrier, answer=lambda request: wrong_answer(rng, request))
        plane.publish(KEYS[0])
        if rng.random() < 0.5:  # whoever reads holds it against a checksum that is wrong, and reports it
            plane.index.cold[3, :2] = (1, 2)
            plane.index.header[H_ADOPTED_NS] = 1 << 62
        with attach(
            plane.socket, [make.space()], timeout_s=0.05, verify="always", on_event=lambda event: None
        ) as client:
            for _ in range(3):
                use(client, KEYS)
        kinds |= {type(request).__name__ for request in plane.requests}
    assert kinds >= {"Attach", "Reserve", "Commit", "Map" if membarrier else "LeaseRequest"}
