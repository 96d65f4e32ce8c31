"""Snapshots are validated whole and applied whole, or refused with every fault and nothing changed."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.protocol.codes import Code
from dataplane.protocol.control.records import MAX_RECORDS
from dataplane.protocol.control.snapshots import SNAPSHOT_TYPES, Fault, Snapshot, SnapshotType
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench
from tests.sizes import size

PAGE = 4096
DIGEST = "a" * 64
LIMIT = 8 * PAGE


def found(faults: list[Fault]) -> list[tuple[str, str]]:
    return [(fault.path, fault.code) for fault in faults]


def raw(kind: SnapshotType, records: list[Any], generation: int = 2) -> Snapshot:
    return make.snapshot(kind, msgspec.msgpack.encode(records), generation)


def quota(tenant: object = "t", **fields: object) -> dict[str, object]:
    return {"tenant": tenant, **fields}


def pin_record(name: object = "p", **fields: object) -> dict[str, object]:
    return {"name": name, "model": "m", "tenant": "", "keys_digest": DIGEST, **fields}


@pytest.fixture
def bench() -> Bench:
    """A node with good quotas in force."""
    bench = Bench(64 * PAGE)
    assert bench.apply(make.quotas({"a": LIMIT}, 1)) == []
    return bench


def assert_last_good_stays(bench: Bench) -> None:
    assert bench.tenant("a").limit_bytes == LIMIT
    assert bench.node.intent.observed["quotas"].generation == 1
    assert bench.node.stats(bench.now).observed["quotas"].generation == 1


def test_several_faults_are_reported_at_once_with_their_paths(bench: Bench) -> None:
    faults = bench.apply(
        raw(
            "quotas",
            [
                quota("good", limit_bytes=5),
                quota("bad/salt", limit_bytes=-1),
                quota("x", limit_bytes="much"),
                quota(7),
                quota("y", limit=5),
                {},
                quota("good"),
                "no record",
                quota("_default"),
                quota("huge", limit_bytes=(1 << 60) + 1),
            ],
        )
    )
    assert found(faults) == [
        ("quotas[1].tenant", "bad_salt"),
        ("quotas[1].limit_bytes", "bad_field"),
        ("quotas[2].limit_bytes", "bad_field"),
        ("quotas[3].tenant", "bad_field"),
        ("quotas[4].limit", "bad_field"),
        ("quotas[5].tenant", "bad_field"),
        ("quotas[7]", "bad_field"),
        ("quotas[8].tenant", "bad_salt"),
        ("quotas[9].limit_bytes", "bad_field"),
        ("quotas[6].tenant", "duplicate"),
    ]
    assert all(fault.message for fault in faults)
    assert_last_good_stays(bench)


def test_a_duplicate_after_an_unreadable_record_has_its_own_position(bench: Bench) -> None:
    faults = bench.apply(raw("quotas", [quota(1), quota("x"), quota("x")]))
    assert ("quotas[2].tenant", "duplicate") in found(faults)
    faults = bench.apply(raw("pins", [pin_record(1), pin_record("x"), pin_record("x")]))
    assert ("pins[2].name", "duplicate") in found(faults)


def test_faults_of_pins_have_paths(bench: Bench) -> None:
    faults = bench.apply(
        raw(
            "pins",
            [
                pin_record(""),
                pin_record("x" * 257),
                pin_record("a\nb"),
                pin_record("m", model=""),
                pin_record("d", keys_digest="A" * 64),
                pin_record("e", keys_digest="abc"),
                pin_record("t", tenant="a@b"),
                *(pin_record(str(when), expires_at=when) for when in ("tomorrow", math.nan, math.inf, -math.inf)),
            ],
        )
    )
    assert found(faults) == [
        ("pins[0].name", "bad_field"),
        ("pins[1].name", "bad_field"),
        ("pins[2].name", "bad_field"),
        ("pins[3].model", "bad_field"),
        ("pins[4].keys_digest", "bad_field"),
        ("pins[5].keys_digest", "bad_field"),
        ("pins[6].tenant", "bad_salt"),
        *((f"pins[{at}].expires_at", "bad_field") for at in range(7, 11)),
    ]


def test_a_stale_generation_is_refused_and_the_same_one_is_not(bench: Bench) -> None:
    assert bench.apply(make.quotas({"a": LIMIT, "b": 1}, 5)) == []
    faults = bench.apply(make.quotas({"a": 1}, 4))
    assert found(faults) == [("generation", "stale_generation")]
    assert bench.tenant("a").limit_bytes == LIMIT
    for generation, kind in zip((9, 8, 7, 6), SNAPSHOT_TYPES, strict=True):  # those of another type are not compared
        assert bench.apply(raw(kind, [], generation)) == [], kind
        assert found(bench.apply(raw(kind, [], generation - 1))) == [("generation", "stale_generation")], kind
        assert bench.apply(raw(kind, [], generation)) == [], kind


def test_generations_of_another_database_are_not_compared(bench: Bench) -> None:
    bench.apply(make.quotas({"a": LIMIT}, 50))
    assert bench.apply(make.quotas({"a": 2 * LIMIT}, 1, store="store-2")) == []
    observed = bench.node.intent.observed["quotas"]
    assert (observed.generation, observed.store) == (1, "store-2")
    assert bench.tenant("a").limit_bytes == 2 * LIMIT


def test_a_missing_body_is_refused_and_all_pins_stay(bench: Bench) -> None:
    old = make.pin("old", make.keys(2, "old"))
    bench.apply(*make.pins([old], 1))
    snapshot, bodies = make.pins([make.pin("one", make.keys(2, 1)), make.pin("two", make.keys(2, 2))], 2)
    missing = min(bodies)
    faults = bench.apply(snapshot, {digest: body for digest, body in bodies.items() if digest != missing})
    assert [fault.code for fault in faults] == ["unknown_body"]
    assert faults[0].path.startswith("pins[")
    assert [pin.name for pin in bench.node.stats(bench.now).pins] == ["old"]


@pytest.mark.parametrize(("body", "code"), [(b"", "bad_keys"), (b"x" * 31, "bad_keys"), (b"x" * 32 * 4097, "bad_keys")])
def test_a_body_that_holds_no_keys_is_refused(bench: Bench, body: bytes, code: str) -> None:
    spec, _ = make.pin("x", [])
    spec = msgspec.structs.replace(spec, keys_digest=make.digest_of(body))
    snapshot, _ = make.pins([(spec, body)], 1)
    assert found(bench.apply(snapshot, {spec.keys_digest: body})) == [("pins[0].keys_digest", code)]


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x80", b"\x91", b"\xdd\xff\xff\xff\xff", b"hello", b"\x81\xa1a\x01", b"\xc0", b"\x91" * 200_000],
    ids=range(9),
)
def test_a_body_that_is_not_a_list_is_one_fault(bench: Bench, body: bytes) -> None:
    for kind in SNAPSHOT_TYPES:
        assert [fault.code for fault in bench.apply(make.snapshot(kind, body, 2))] == ["malformed"], kind
    assert_last_good_stays(bench)


@settings(max_examples=size(100, 30), deadline=None)
@given(body=st.binary(max_size=200), kind=st.sampled_from(SNAPSHOT_TYPES))
def test_no_bytes_raise(body: bytes, kind: SnapshotType) -> None:
    bench = Bench(64 * PAGE)
    faults = bench.apply(make.snapshot(kind, body))
    assert all(fault.code.upper() in Code.__members__ for fault in faults)


def test_an_answer_never_has_more_than_a_hundred_faults(bench: Bench) -> None:
    assert len(bench.apply(raw("quotas", [quota("bad/salt")] * 500))) == 100
    assert len(bench.apply(raw("quotas", [quota("same")] * 500))) == 100
    assert len(bench.apply(raw("pins", [pin_record("same")] * 500))) == 100


def test_too_many_records_are_one_fault(bench: Bench) -> None:
    faults = bench.apply(raw("quotas", [{}] * (MAX_RECORDS + 1)))
    assert found(faults) == [("quotas", "too_many")]
    assert_last_good_stays(bench)
