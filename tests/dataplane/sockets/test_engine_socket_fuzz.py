"""Random bytes and damaged messages: every datagram is answered or ends the connection, and the node stays whole."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataplane.protocol.codec import encode
from dataplane.protocol.engine import (
    VERSION,
    Abort,
    Attach,
    Attached,
    Commit,
    Detach,
    LeaseRequest,
    Map,
    Ping,
    Report,
    Reserve,
    SpaceRequest,
)
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, RawEngine
from tests.sizes import size

INTEGERS = st.one_of(st.integers(-3, 5), st.integers(-(2**63), 2**64 - 1))
KEYS = st.one_of(st.binary(max_size=100), st.integers(0, 5).map(lambda number: make.packed(make.keys(number))))
TEXT = st.text(max_size=10)
MESSAGES = st.one_of(
    st.builds(
        Attach,
        INTEGERS,
        st.one_of(st.just(VERSION), INTEGERS),
        TEXT,
        st.lists(st.builds(SpaceRequest, st.builds(make.space, TEXT, rank=INTEGERS, world_size=INTEGERS)), max_size=3),
        resume=INTEGERS,
        resume_memory=INTEGERS,
        writing=st.lists(INTEGERS, max_size=4),
    ),
    st.builds(Report, INTEGERS, st.binary(max_size=40), st.binary(max_size=80)),
    st.integers(0, 4).flatmap(
        lambda n: st.builds(
            Report, INTEGERS, st.binary(min_size=4 * n, max_size=4 * n), st.binary(min_size=8 * n, max_size=8 * n)
        )
    ),
    st.builds(Reserve, INTEGERS, INTEGERS, TEXT, KEYS, st.one_of(st.integers(1, 9000), INTEGERS), KEYS),
    st.builds(Commit, INTEGERS, INTEGERS, KEYS, KEYS),
    st.builds(Abort, INTEGERS, INTEGERS),
    st.builds(LeaseRequest, INTEGERS, INTEGERS, KEYS),
    st.builds(Map, INTEGERS, st.lists(INTEGERS, max_size=5)),
    st.builds(Detach, INTEGERS),
    st.builds(Ping, INTEGERS, INTEGERS),
)
PIECES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), TEXT, st.binary(max_size=40)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)
TAGS = st.sampled_from(["attach", "reserve", "commit", "abort", "lease", "report", "map", "detach", "hold", "x"])


@pytest.fixture(scope="module")
def fuzzed(shared_plane: Plane) -> Iterator[Plane]:
    yield shared_plane
    assert shared_plane.alive, shared_plane.log()
    assert "Traceback" not in shared_plane.log()
    shared_plane.describe()  # audits the accounts


def survives(plane: Plane, datagrams: list[bytes], *, attach: bool) -> None:
    with RawEngine(plane.socket) as engine:
        if attach:
            engine.attach(group="fuzz")
        for data in datagrams:
            if not data:
                continue
            answer = engine.ask(data)
            if answer is None:
                break
    with RawEngine(plane.socket) as good:
        assert isinstance(good.attach(group="good"), Attached)
        good.ask(Detach(1))


SETTINGS = settings(
    max_examples=size(60, 20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@SETTINGS
@given(datagrams=st.lists(st.binary(max_size=300), min_size=1, max_size=5), attach=st.booleans())
def test_random_bytes(fuzzed: Plane, datagrams: list[bytes], attach: bool) -> None:
    survives(fuzzed, datagrams, attach=attach)


@SETTINGS
@given(messages=st.lists(MESSAGES, min_size=1, max_size=6), attach=st.booleans())
def test_messages_with_any_values(fuzzed: Plane, messages: list[object], attach: bool) -> None:
    survives(fuzzed, [encode(message) for message in messages], attach=attach)


@SETTINGS
@given(messages=st.lists(MESSAGES, min_size=1, max_size=4), seed=st.integers(0, 1 << 30))
def test_damaged_messages(fuzzed: Plane, messages: list[object], seed: int) -> None:
    rng = random.Random(seed)
    datagrams = []
    for message in messages:
        data = bytearray(encode(message))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = rng.randint(1, len(data)) if rng.random() < 0.3 else len(data)
        datagrams.append(bytes(data[:cut]))
    survives(fuzzed, datagrams, attach=rng.random() < 0.7)


@SETTINGS
@given(tag=TAGS, fields=st.lists(PIECES, max_size=7))
def test_known_tags_with_fields_of_any_type(fuzzed: Plane, tag: str, fields: list[object]) -> None:
    survives(fuzzed, [msgspec.msgpack.encode([tag, *fields])], attach=True)
