"""A number that no node can mean is refused with its field and the nonce of the message."""

from __future__ import annotations

import msgspec
import pytest

from dataplane.protocol.codec import encode
from dataplane.protocol.control.messages import ControlRefused, ControlRequest
from dataplane.protocol.control.nodes import Resize
from dataplane.protocol.control.prefixes import ListPrefixes, Trace
from dataplane.protocol.control.snapshots import Nack, Snapshot, digest_of
from dataplane.protocol.usage import ReadUsage
from tests.dataplane.plane import Plane

HUGE = 2**64 - 1


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
