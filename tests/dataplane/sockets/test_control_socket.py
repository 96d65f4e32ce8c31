"""The control socket of a running data plane: introductions, snapshots, bodies, descriptions, and what is wrong."""

from __future__ import annotations

import os

import msgspec
import pytest
import zmq

from dataplane import __version__
from dataplane.protocol.codec import encode
from dataplane.protocol.control.messages import VERSION, ControlRefused, ControlRequest
from dataplane.protocol.control.nodes import DescribeNode, Description, Hello, Resize, Welcome
from dataplane.protocol.control.prefixes import ListPrefixes, Trace
from dataplane.protocol.control.snapshots import Ack, Bodies, Nack, NeedBodies, Snapshot, digest_of
from dataplane.protocol.engine import Reserve
from dataplane.protocol.event import name_of
from dataplane.protocol.events import EngineAttached, Event, SnapshotApplied
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.usage import ReadUsage
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect
from tests.dataplane.plane import WAIT_S, Manager, Plane, RawEngine

PAGE = 4096
HUGE = 2**64 - 1


def test_a_node_introduces_itself_and_keeps_its_name(plane: Plane) -> None:
    with plane.manager() as manager:
        first = manager.ask(Hello(VERSION, "test"))
    assert isinstance(first, Welcome)
    assert (first.pid, first.release, first.version) == (plane.pid, __version__, VERSION)
    assert first.engine_socket == plane.socket
    assert first.events_url == plane.events_url
    assert first.capacity_bytes == 16 * make.MIB
    assert first.observed == {}
    plane.stop()
    plane.start()
    with plane.manager() as manager:
        second = manager.ask(Hello(VERSION, "test"))
    assert second.node == first.node
    assert second.epoch != first.epoch
    assert len(second.epoch) == 16


def test_another_version_is_refused(manager: Manager) -> None:
    answer = manager.ask(Hello(VERSION + 1, "test"))
    assert isinstance(answer, ControlRefused)
    assert (answer.code, answer.field) == ("version_mismatch", "version")


def test_a_snapshot_is_acked_and_in_force(plane: Plane, manager: Manager) -> None:
    snapshot = make.quotas({"a": 4 * PAGE, "": None}, 3)
    answer = manager.ask(snapshot)
    assert isinstance(answer, Ack)
    assert (answer.type, answer.generation, answer.nonce, answer.digest) == (
        "quotas",
        3,
        snapshot.nonce,
        snapshot.digest,
    )
    assert 0 <= answer.applied_s < WAIT_S
    with connect(plane) as client:
        reservation = client.reserve(make.keys(6), PAGE, tenant="a")
        assert {code.name: number for code, number in reservation.refused.items()} == {"OVER_LIMIT": 2}
        reservation.abort()
    stats = manager.describe()
    assert stats.armed
    assert stats.observed["quotas"].generation == 3
    assert {tenant.tenant for tenant in stats.tenants} == {"a", "_default"}
    assert manager.ask(Hello(VERSION, "x")).observed["quotas"].digest == snapshot.digest


def test_a_wrong_snapshot_is_nacked_with_paths_and_the_last_good_one_stays(manager: Manager) -> None:
    good = make.quotas({"a": 4 * PAGE}, 1)
    assert isinstance(manager.ask(good), Ack)
    body = msgspec.msgpack.encode([{"tenant": "ok", "limit_bytes": 1}, {"tenant": "b@d", "limit_bytes": "x"}])
    wrong = [
        (make.snapshot("quotas", body, 2), "quotas[1].limit_bytes", "bad_field"),
        (msgspec.structs.replace(make.quotas({}, 2), digest="0" * 64), "digest", "bad_digest"),
        (make.quotas({"a": 1}, 0), "generation", "stale_generation"),
        (make.snapshot("quotas", b"\xc1garbage", 2), "quotas", "malformed"),
    ]
    for snapshot, path, code in wrong:
        answer = manager.ask(snapshot)
        assert isinstance(answer, Nack)
        assert [(fault.path, fault.code) for fault in answer.errors] == [(path, code)]
        assert answer.nonce == snapshot.nonce
        assert answer.observed is not None
        assert (answer.observed.generation, answer.observed.digest) == (1, good.digest)
    (tenant,) = manager.describe().tenants
    assert tenant.limit_bytes == 4 * PAGE


def test_bodies_of_pins_are_requested_once_and_may_come_in_parts(plane: Plane, manager: Manager) -> None:
    records = [make.pin(f"pin-{number}", make.keys(3, number)) for number in range(3)]
    snapshot, bodies = make.pins(records)
    needed = manager.ask(snapshot)
    assert isinstance(needed, NeedBodies)
    assert (needed.nonce, sorted(needed.digests)) == (snapshot.nonce, sorted(bodies))
    *first, last = bodies.items()
    for digest, body in first:
        manager.socket.send(encode(Bodies(snapshot.nonce, {digest: body}, last=False)))
    answer = manager.ask(Bodies(snapshot.nonce, dict([last])))
    assert isinstance(answer, Ack)
    assert {pin.name: pin.resolved for pin in manager.describe().pins} == dict.fromkeys(("pin-0", "pin-1", "pin-2"), 3)
    assert isinstance(manager.ask(make.pins(records[:2], 2)[0]), Ack), "nothing is asked that is there"


def test_missing_and_wrong_bodies_are_nacked(manager: Manager) -> None:
    snapshot, bodies = make.pins([make.pin("x", make.keys(2))])
    answer = manager.push(snapshot, {})
    assert isinstance(answer, Nack)
    assert [(fault.path, fault.code) for fault in answer.errors] == [("pins[0].keys_digest", "unknown_body")]
    answer = manager.push(snapshot, dict.fromkeys(bodies, b"y" * 64))
    assert [fault.code for fault in answer.errors] == ["bad_digest"]
    assert isinstance(manager.push(snapshot, bodies), Ack)


def test_unrequested_bodies_are_refused(manager: Manager) -> None:
    answer = manager.ask(Bodies("nonce-of-nothing", {}))
    assert isinstance(answer, ControlRefused)
    assert (answer.code, answer.nonce) == ("unknown_body", "nonce-of-nothing")
    snapshot, bodies = make.pins([make.pin("x", make.keys(2))])
    manager.ask(snapshot)
    assert isinstance(manager.ask(Bodies("another nonce", bodies)), ControlRefused)
    manager.socket.send(encode(Bodies(snapshot.nonce, {"unasked": b"x" * 1000}, last=False)))
    assert isinstance(manager.ask(Bodies(snapshot.nonce, bodies)), Ack)


def test_two_managers_do_not_mix_their_bodies(plane: Plane, manager: Manager) -> None:
    snapshot, bodies = make.pins([make.pin("x", make.keys(2))])
    with plane.manager() as other:
        assert isinstance(manager.ask(snapshot), NeedBodies)
        assert isinstance(other.ask(Bodies(snapshot.nonce, bodies)), ControlRefused)
    assert isinstance(manager.ask(Bodies(snapshot.nonce, bodies)), Ack)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"garbage" * 50,
        os.urandom(3000),
        msgspec.msgpack.encode({}),
        msgspec.msgpack.encode({"op": "nothing"}),
        msgspec.msgpack.encode({"op": "hello"}),
        msgspec.msgpack.encode({"op": "hello", "version": "1", "manager": "x"}),
        msgspec.msgpack.encode({"op": "describe", "nonce": "x", "more": 1}),
        msgspec.msgpack.encode({"op": "welcome"}),
        encode(make.quotas({}))[:-3],
        encode(make.quotas({})).replace(b"quotas", b"quotes"),
        b"\x91" * 3000,
    ],
)
def test_an_invalid_message_is_answered(shared_plane: Plane, data: bytes) -> None:
    with shared_plane.manager() as manager:
        manager.socket.send(data)
        answer = manager.receive()
        assert isinstance(answer, ControlRefused)
        assert answer.code == "malformed"
        assert isinstance(manager.ask(DescribeNode("n")), Description)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Trace("n", 0.0, HUGE), "after"),
        (Trace("n", 0.0, -1), "after"),
        (Trace("n", float("nan")), "since"),
        (Trace("n", float("inf")), "since"),
        (ReadUsage("n", after=HUGE), "after"),
        (ReadUsage("n", after=-1), "after"),
        (ReadUsage("n", float("nan")), "noted"),
        (ReadUsage("n", float("-inf")), "noted"),
        (ListPrefixes("n", "hits", None, HUGE), "limit"),
        (Resize("n", HUGE), "capacity_bytes"),
        (Resize("n", -(2**63)), "capacity_bytes"),
        (Snapshot("quotas", "s", HUGE, "n", digest_of(b"\x90"), b"\x90"), "generation"),
        (Snapshot("quotas", "s", -1, "n", digest_of(b"\x90"), b"\x90"), "generation"),
        (Snapshot("quotas", "s" * 1000, 1, "n", digest_of(b"\x90"), b"\x90"), "store"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_field_and_nonce(
    shared_plane: Plane, message: ControlRequest, field: str
) -> None:
    with shared_plane.manager() as manager:
        manager.socket.send(encode(message))
        reply = manager.receive()
    assert isinstance(reply, ControlRefused)
    assert (reply.field, reply.nonce) == (field, "n")


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        ("quotas", {"tenant": "a", "limit_bytes": HUGE}),
        ("quotas", {"tenant": "a", "floor_bytes": HUGE}),
        ("quotas", {"tenant": "a", "pin_budget_bytes": HUGE}),
        ("quotas", {"tenant": "a", "store_rate_bytes": HUGE}),
        ("quotas", {"tenant": "a", "weight": float("nan")}),
        ("quotas", {"tenant": "a", "weight": float("inf")}),
        ("policies", {"name": "default", "admission_idle_s": float("nan")}),
        ("policies", {"name": "default", "high_watermark": float("nan")}),
        ("policies", {"name": "default", "high_watermark": 0.9, "low_watermark": float("-inf")}),
    ],
)
def test_records_with_numbers_that_cannot_be_are_faults_with_their_path(
    shared_plane: Plane, kind: str, record: dict[str, object]
) -> None:
    body = msgspec.msgpack.encode([record])
    with shared_plane.manager() as manager:
        manager.socket.send(
            encode(Snapshot(kind, "numbers", 1, "n", digest_of(body), body))  # type: ignore[arg-type]
        )
        reply = manager.receive()
    assert isinstance(reply, Nack)
    assert reply.nonce == "n"
    assert reply.errors[0].path in {f"{kind}[0].{name}" for name in record}
    shared_plane.describe()


def test_a_message_of_several_frames_is_answered(shared_plane: Plane) -> None:
    with shared_plane.manager() as manager:
        manager.socket.send_multipart([b"", encode(DescribeNode("n"))])
        assert isinstance(manager.receive(), ControlRefused)
        assert isinstance(manager.ask(DescribeNode("n")), Description)


def test_a_manager_that_leaves_before_its_answer_affects_no_other(shared_plane: Plane) -> None:
    for _ in range(20):
        with shared_plane.manager() as manager:
            manager.socket.send(encode(DescribeNode("n")))
    shared_plane.wait_stats(lambda stats: stats.engines == [], "engines of other tests are gone")


def test_events_are_numbered_without_gaps_and_a_description_has_its_number(plane: Plane) -> None:
    known = {name_of_type(kind): kind for kind in Event.__args__}
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber, plane.manager() as manager:
        subscriber.subscribe(b"")
        subscriber.connect(plane.events_url)
        seen: list[tuple[int, Event]] = []

        def receive_until(kind: type[Event]) -> Event:
            while True:
                assert subscriber.poll(int(WAIT_S * 1000)), f"an event {kind.__name__} comes"
                topic, number, body = subscriber.recv_multipart()
                event = msgspec.msgpack.decode(body, type=known[topic.decode()])
                assert name_of(event) == topic.decode()
                seen.append((int.from_bytes(number, "little"), event))
                if isinstance(event, kind):
                    return event

        receive_until(NodeStats)
        with connect(plane, group="seen") as client:
            assert receive_until(EngineAttached).group == "seen"
            # Sizes far beyond any machine must not make an event that cannot be sent.
            assert client.reserve(make.keys(4096), 1 << 40).refused
            with RawEngine(plane.socket) as raw:
                raw.ask(Reserve(1, raw.attach().spaces[0], "", make.packed(make.keys(4)), 2**62))
        manager.ask(make.quotas({}, 1))
        applied = receive_until(SnapshotApplied)
        assert isinstance(applied, SnapshotApplied)
        assert applied.generation == 1
        answer = manager.ask(DescribeNode("n"))
        assert answer.seq >= seen[-1][0]
        receive_until(NodeStats)
    numbers = [number for number, _ in seen]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert "subscriber_failed" not in plane.log()


def name_of_type(kind: type[Event]) -> str:
    return str(kind.__struct_config__.tag)
