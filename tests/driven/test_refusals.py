"""What is refused of a cache, a store or a load: with the field and what was expected, and nothing half-done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pytest

from dataplane.client.engine_memory import exported
from dataplane.copies.driven.copies import MAX_CACHES
from dataplane.devices.emulator.device import EmulatedDevice
from dataplane.devices.runtime import DeviceError
from dataplane.protocol.codec import encode
from dataplane.protocol.codes import Code, ReserveOutcome, code_of
from dataplane.protocol.engine import (
    Abort,
    CacheRegistered,
    Commit,
    CopyEnded,
    Detach,
    Detached,
    LoadInto,
    Refused,
    RegisterCache,
    SpaceRequest,
    StoreBegun,
    StoreFrom,
    TensorDescription,
    UnregisterCache,
)
from tests.dataplane import factories as make
from tests.dataplane.plane import RawEngine, wait_for
from tests.driven.conftest import DrivenPlane
from tests.driven.engines import Engine
from tests.gpu.machines import Machine

MakePlane = Callable[..., DrivenPlane]
MakeEngine = Callable[..., Engine]
KEY = make.packed(make.keys(1))
BLOCKS = np.arange(16, dtype=np.uint32).tobytes()


class Raw:
    """A connection that says what a test gives it, beside a good registration."""

    def __init__(self, plane: DrivenPlane, engine: Engine) -> None:
        self.plane = plane
        self.connection = RawEngine(plane.socket)
        self.connection.attach(SpaceRequest(engine.space), SpaceRequest(make.space("other")))
        attached = self.connection.attached
        assert attached is not None
        self.good = RegisterCache(
            1,
            attached.spaces[0],
            engine.machine.device.uuid,
            [engine.tensors[0].handle.body],
            [
                TensorDescription(
                    0, each.handle.offset, each.handle.nbytes, each.dtype, list(each.shape), list(each.stride)
                )
                for each in engine.tensors
            ],
            16,
        )

    def refused(self, **changes: Any) -> tuple[Code, str, str]:
        """Code, field and sentence of the refusal of a registration."""
        answer = self.connection.ask(msgspec.structs.replace(self.good, **changes))
        assert isinstance(answer, Refused), answer
        return code_of(answer.code), answer.field, answer.message

    def tensor(self, **changes: Any) -> dict[str, Any]:
        first, *rest = self.good.tensors
        return {"tensors": [msgspec.structs.replace(first, **changes), *rest]}

    def register(self) -> int:
        answer = self.connection.ask(self.good)
        assert isinstance(answer, CacheRegistered), answer
        return answer.cache


@pytest.fixture
def raw(emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine) -> Iterator[Raw]:
    plane = make_plane(emulated)
    made = Raw(plane, make_engine(emulated, plane))
    yield made
    made.connection.close()
    assert plane.other.process.poll() is None


def test_caches_that_fit_nothing_are_refused_by_the_field_at_fault(raw: Raw) -> None:
    good = raw.good
    first = good.tensors[0]
    body = good.allocations[0]
    wrong: list[tuple[dict[str, Any], Code, str]] = [
        ({"space": 99}, Code.UNKNOWN_SPACE, "space"),
        ({"space": raw.connection.attached.spaces[1]}, Code.BAD_CACHE, "space"),
        ({"device": ""}, Code.BAD_CACHE, "device"),
        ({"device": "x" * 65}, Code.BAD_CACHE, "device"),
        ({"device": str(uuid4())}, Code.DEVICE_REFUSED, "device"),
        ({"allocations": []}, Code.BAD_CACHE, "allocations"),
        ({"allocations": [body] * 1025}, Code.BAD_CACHE, "allocations"),
        ({"allocations": [body[:63]]}, Code.BAD_CACHE, "allocations[0]"),
        ({"allocations": [bytes(64)]}, Code.DEVICE_REFUSED, "allocations[0]"),
        ({"allocations": [body, body[::-1]]}, Code.DEVICE_REFUSED, "allocations[1]"),
        ({"allocations": [b"\x03e" + body]}, Code.DEVICE_REFUSED, "allocations[0]"),
        ({"tensors": []}, Code.BAD_CACHE, "tensors"),
        ({"tensors": [first] * 1025}, Code.BAD_CACHE, "tensors"),
        ({"tensors": good.tensors[:1]}, Code.BAD_CACHE, "tensors"),
        ({"tokens_per_block": 0}, Code.BAD_CACHE, "tokens_per_block"),
        ({"tokens_per_block": 17}, Code.BAD_CACHE, "tokens_per_block"),
        ({"tokens_per_block": 8}, Code.BAD_CACHE, "tensors"),
        (raw.tensor(allocation=1), Code.BAD_CACHE, "tensors[0].allocation"),
        (raw.tensor(allocation=-1), Code.BAD_CACHE, "tensors[0].allocation"),
        (raw.tensor(offset=-1), Code.BAD_CACHE, "tensors[0].offset"),
        (raw.tensor(offset=1 << 60), Code.BAD_CACHE, "tensors[0].offset"),
        (raw.tensor(offset=1 << 40), Code.BAD_CACHE, "tensors[0].offset"),
        (raw.tensor(nbytes=first.nbytes - 1), Code.BAD_CACHE, "tensors[0].nbytes"),
        (raw.tensor(nbytes=1 << 40), Code.BAD_CACHE, "tensors[0].offset"),
        (raw.tensor(dtype="complex64"), Code.BAD_CACHE, "tensors[0].dtype"),
        (raw.tensor(dtype="bfloat16"), Code.BAD_CACHE, "tensors"),
        (raw.tensor(shape=[]), Code.BAD_CACHE, "tensors[0].shape"),
        (raw.tensor(shape=[0, *first.shape[1:]]), Code.BAD_CACHE, "tensors[0].shape"),
        (raw.tensor(shape=[1] * 9, stride=[1] * 9), Code.BAD_CACHE, "tensors[0].shape"),
        (raw.tensor(shape=[1 << 50] * 5), Code.BAD_CACHE, "tensors[0].stride"),
        (raw.tensor(stride=first.stride[:-1]), Code.BAD_CACHE, "tensors[0].stride"),
        (raw.tensor(stride=[0] * 5), Code.BAD_CACHE, "tensors[0].stride"),
        (raw.tensor(stride=[-1, *first.stride[1:]]), Code.BAD_CACHE, "tensors[0].stride"),
    ]
    for changes, code, field in wrong:
        got = raw.refused(**changes)
        assert got[:2] == (code, field), (changes, got)
        assert got[2]
    assert "expandable_segments:False" in raw.refused(allocations=[b"\x03e" + body])[2]
    assert raw.register() == 1


def test_stores_and_loads_that_fit_nothing_are_refused_by_the_field_at_fault(raw: Raw) -> None:
    cache = raw.register()
    beyond = np.full(16, 40, np.uint32).tobytes()
    store = StoreFrom(2, cache, "", KEY, BLOCKS)
    load = LoadInto(2, cache, KEY, BLOCKS)
    wrong: list[tuple[msgspec.Struct, dict[str, Any], Code, str]] = [
        (store, {"cache": 9}, Code.UNKNOWN_CACHE, "cache"),
        (store, {"tenant": "a/b"}, Code.BAD_SALT, "tenant"),
        (store, {"keys": b""}, Code.BAD_KEYS, "keys"),
        (store, {"keys": KEY[:31]}, Code.BAD_KEYS, "keys"),
        (store, {"keys": KEY + KEY}, Code.BAD_KEYS, "keys"),
        (store, {"blocks": b""}, Code.BAD_BLOCKS, "blocks"),
        (store, {"blocks": BLOCKS[:-1]}, Code.BAD_BLOCKS, "blocks"),
        (store, {"blocks": BLOCKS + BLOCKS}, Code.BAD_BLOCKS, "blocks"),
        (store, {"blocks": beyond}, Code.BAD_BLOCKS, "blocks"),
        (store, {"event": b"x"}, Code.BAD_EVENT, "event"),
        (store, {"parent": b"x"}, Code.BAD_KEYS, "parent"),
        (load, {"cache": -1}, Code.UNKNOWN_CACHE, "cache"),
        (load, {"keys": b"x"}, Code.BAD_KEYS, "keys"),
        (load, {"blocks": beyond}, Code.BAD_BLOCKS, "blocks"),
        (load, {"blocks": b""}, Code.BAD_BLOCKS, "blocks"),
        (load, {"blocks": BLOCKS[:-1]}, Code.BAD_BLOCKS, "blocks"),
        (load, {"blocks": BLOCKS + BLOCKS}, Code.BAD_BLOCKS, "blocks"),
        (load, {"event": bytes(65)}, Code.BAD_EVENT, "event"),
        (load, {"skip_blocks": -1}, Code.BAD_BLOCKS, "skip_blocks"),
        (load, {"skip_blocks": 17}, Code.BAD_BLOCKS, "skip_blocks"),
        (UnregisterCache(2, 7), {}, Code.UNKNOWN_CACHE, "cache"),
    ]
    for message, changes, code, field in wrong:
        assert raw.connection.refusal(msgspec.structs.replace(message, **changes)) == (code, field), changes
    assert raw.plane.describe().pool.used_bytes == 0


def test_an_event_that_is_none_fails_its_copy_alone(raw: Raw) -> None:
    cache = raw.register()
    begun = raw.connection.ask(StoreFrom(2, cache, "", KEY, BLOCKS, bytes(64)))
    assert isinstance(begun, StoreBegun)
    ended = raw.connection.receive()
    assert isinstance(ended, CopyEnded)
    assert (ended.blocks, code_of(ended.code)) == (0, Code.COPY_FAILED)
    assert raw.plane.describe().pool.used_bytes == 0


def test_an_engine_cannot_end_a_reservation_that_the_data_plane_fills(raw: Raw) -> None:
    cache = raw.register()
    raw.plane.ask("stop_after", nbytes=100_000)
    assert raw.connection.ask(StoreFrom(2, cache, "", KEY, BLOCKS)).outcomes == bytes((ReserveOutcome.WRITE,))
    assert raw.plane.ask("stopped") == {"stopped": True}
    for number in range(1, 4):
        for message in (Commit(3, number), Abort(3, number)):
            assert raw.connection.refusal(message) == (Code.UNKNOWN_RESERVATION, "reservation")
    raw.connection.send(msgspec.msgpack.encode(Detach(4)))
    raw.connection.send(msgspec.msgpack.encode(Detach(5)))
    raw.plane.ask("resume")
    answers = [raw.connection.receive() for _ in range(3)]
    kinds = {type(each) for each in answers}
    assert kinds == {CopyEnded, Detached, Refused}


def test_an_engine_has_so_many_caches_and_no_more(raw: Raw) -> None:
    for number in range(MAX_CACHES):
        assert raw.register() == number + 1
    assert raw.refused()[0] is Code.TOO_MANY_COPIES
    raw.connection.ask(UnregisterCache(2, 5))
    assert raw.register() == MAX_CACHES + 1


def test_a_machine_without_devices_reports_it(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    engine = make_engine(emulated, make_plane(emulated, no_devices=True))
    assert engine.register() is Code.UNSUPPORTED
    assert engine.client.store_from(make.keys(1), list(range(16))).outcomes.tolist() == [Code.UNSUPPORTED]
    assert engine.client.lookup(make.keys(1)) == 0


def test_the_engines_side_refuses_wrong_arguments(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    engine = make_engine(emulated, make_plane(emulated))
    client, keys = engine.client, make.keys(1)
    with pytest.raises(ValueError, match="no cache is registered"):
        client.load_into(keys, list(range(16)))
    engine.register()
    for blocks in ([], list(range(15)), [*range(15), 40], [*range(15), -1]):
        with pytest.raises(ValueError, match="blocks"):
            client.store_from(keys, blocks)
    for changes in ({"tenant": "a/b"}, {"parent": b"x"}, {"event": b"x"}, {"space": 1}):
        with pytest.raises(ValueError, match=r"expected|must"):
            client.store_from(keys, list(range(16)), **changes)
    with pytest.raises(ValueError, match="skip_blocks"):
        client.load_into(keys, list(range(16)), skip_blocks=17)
    with pytest.raises(ValueError, match="expected one of"):
        exported(emulated.runtime, engine.address, "int128", (2, 2), (2, 1))
    runtime = emulated.runtime
    assert isinstance(runtime, EmulatedDevice)
    expandable = runtime.allocate(emulated.device, 4096, expandable=True)
    with pytest.raises(DeviceError, match="expandable_segments:False"):
        exported(runtime, expandable, "float16", (2, 16), (16, 1))
    runtime.free(expandable)


def test_registrations_that_wait_for_an_earlier_connection_are_bounded(plane: DrivenPlane, engine: Engine) -> None:
    raw = Raw(plane, engine)
    plane.ask("stop_after", nbytes=100_000)
    engine.client.store_from(make.keys(1), list(range(16)))
    assert plane.ask("stopped") == {"stopped": True}
    before = plane.open_fds()
    engine.client._link.drop("a test")
    wait_for(lambda: plane.open_fds() < before, "its connection is closed")
    more = 5
    for number in range(1, MAX_CACHES + more + 1):
        raw.connection.send(encode(msgspec.structs.replace(raw.good, id=number)))
    for number in range(MAX_CACHES + 1, MAX_CACHES + more + 1):
        answer = raw.connection.receive()
        assert isinstance(answer, Refused), answer
        assert (answer.id, code_of(answer.code)) == (number, Code.TOO_MANY_COPIES)
    plane.ask("resume")
    for number in range(1, MAX_CACHES + 1):
        answer = raw.connection.receive()
        assert isinstance(answer, CacheRegistered), answer
        assert answer.id == number
    raw.connection.close()
    plane.wait_stats(lambda stats: not stats.pool.reserved_bytes, "the store is given up")
