"""Hostile messages about caches and copies: each is answered or ends the connection, and the node stays whole."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataplane.protocol.codec import encode
from dataplane.protocol.engine import (
    Abort,
    Commit,
    Detach,
    HostPiece,
    LoadInto,
    RegisterCache,
    RegisterHostPool,
    SpaceRequest,
    StoreFrom,
    TensorDescription,
    UnregisterCache,
)
from tests.dataplane import factories as make
from tests.dataplane.plane import RawEngine
from tests.driven.conftest import DrivenPlane
from tests.driven.engines import Engine
from tests.driven.engines import make as make_engine
from tests.gpu.machines import Machine
from tests.run_marks import short_folder

NUMBERS = st.one_of(st.integers(-2, 5), st.sampled_from([-(2**63), 2**63, 2**64 - 1, 2**50, 2**32]))
SMALL = st.integers(0, 3)


@pytest.fixture(scope="module")
def hostile() -> Iterator[tuple[DrivenPlane, Engine]]:
    machine = Machine("emulated")
    with short_folder() as folder:
        plane = DrivenPlane(folder, {"dataplane__max_clients": "1024"}).begin(machine)
        engine = make_engine(machine, plane.socket, {"page_bytes": 4096})
        yield plane, engine
        assert plane.other.process.poll() is None
        plane.describe()
        engine.close()
        plane.kill()
    machine.close()


@pytest.fixture(scope="module")
def files() -> Iterator[list[int]]:
    """File descriptors: an allocated memfd, one of the same size that is not allocated, and others."""
    made = [os.memfd_create("fuzz"), os.memfd_create("fuzz"), os.open("/dev/zero", os.O_RDWR), os.eventfd(0)]
    os.posix_fallocate(made[0], 0, 1 << 20)
    os.ftruncate(made[1], 1 << 20)
    yield made
    for each in made:
        os.close(each)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_messages_with_any_values(hostile: tuple[DrivenPlane, Engine], files: list[int], data: st.DataObject) -> None:
    plane, engine = hostile
    body = engine.tensors[0].handle.body
    tensors = [
        TensorDescription(0, each.handle.offset, each.handle.nbytes, each.dtype, list(each.shape), list(each.stride))
        for each in engine.tensors
    ]
    bodies = st.one_of(st.just(body), st.binary(max_size=70), st.just(b"\x03e" + body))
    any_tensor = st.builds(
        TensorDescription,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        st.sampled_from(["float16", "bool", ""]),
        st.lists(NUMBERS, max_size=6),
        st.lists(NUMBERS, max_size=6),
    )
    keys = st.integers(0, 3).map(lambda count: make.packed(make.keys(count)))
    blocks = st.one_of(
        st.binary(max_size=70),
        st.tuples(st.integers(0, 3), st.integers(0, 45)).map(
            lambda each: np.full(16 * each[0], each[1], np.uint32).tobytes()
        ),
    )
    events = st.one_of(st.just(b""), st.binary(max_size=64), st.just(bytes(64)), st.just(body))
    messages = st.one_of(
        st.builds(
            RegisterCache,
            st.integers(0, 9),
            st.one_of(SMALL, NUMBERS),
            st.one_of(st.just(engine.machine.device.uuid), st.text(max_size=70)),
            st.lists(bodies, max_size=3),
            st.one_of(st.just(tensors), st.lists(any_tensor, max_size=3)),
            st.one_of(st.just(16), NUMBERS),
        ),
        st.just(RegisterCache(1, 2, engine.machine.device.uuid, [body], tensors, 16)),
        st.builds(
            RegisterHostPool,
            st.integers(0, 9),
            st.one_of(SMALL, NUMBERS),
            st.lists(st.one_of(st.just(1 << 20), NUMBERS), max_size=5),
            st.lists(st.builds(HostPiece, NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=3),
            NUMBERS,
        ),
        st.builds(UnregisterCache, st.integers(0, 9), st.one_of(SMALL, NUMBERS)),
        st.builds(
            StoreFrom,
            st.integers(0, 9),
            SMALL,
            st.text(max_size=3),
            keys,
            blocks,
            events,
            st.binary(max_size=33),
            st.booleans(),
        ),
        st.builds(LoadInto, st.integers(0, 9), SMALL, keys, blocks, events, NUMBERS),
        st.builds(Commit, st.integers(0, 9), st.integers(0, 300)),
        st.builds(Abort, st.integers(0, 9), st.integers(0, 300)),
        st.builds(Detach, st.integers(0, 9)),
    )
    with RawEngine(plane.socket) as raw:
        number = raw.attach(SpaceRequest(engine.space), group="fuzz").spaces[0]
        for message in data.draw(st.lists(messages, min_size=1, max_size=8)):
            if isinstance(message, RegisterCache | RegisterHostPool) and data.draw(st.booleans()):
                message.space = number
            attached = data.draw(st.lists(st.sampled_from(files), max_size=6))
            socket.send_fds(raw.socket, [encode(message)], attached)
        if data.draw(st.booleans()):
            raw.receive()
    plane.describe()  # audits the accounts
