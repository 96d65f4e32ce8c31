"""A value that a manager cannot store or compute with makes the message of a node malformed: it stops nothing else."""

import math
from struct import pack
from typing import Any

import msgspec
import pytest

from app.ingest.fleet import Fleet
from app.ingest.subscriber import EventIntake, Subscriber
from app.push.node_journal import NodeJournal
from app.store.base.database import Database
from app.store.fleet import nodes
from dataplane.protocol.bounded import MAX_TIME_S
from dataplane.protocol.codec import decode, encode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.control.messages import VERSION, ControlReply
from dataplane.protocol.control.nodes import Description, Resized, Welcome
from dataplane.protocol.control.snapshots import SNAPSHOT_TYPES, Ack, Nack
from dataplane.protocol.event import name_of
from dataplane.protocol.events import Event, NodeStopped
from dataplane.protocol.observed import Observed
from dataplane.protocol.stats.histogram import Histogram
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pool import PoolStats, Totals
from dataplane.protocol.stats.processes import CacheStart, ProcessStats
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.event_bus import event_bus

pytestmark = pytest.mark.anyio
LARGEST = 1 << 62
OBSERVED = Observed(LARGEST, "d" * 64, "s" * 128)
WELCOME = Welcome(
    version=VERSION,
    node="n" * 128,
    epoch="e" * 128,
    pid=LARGEST,
    release="r" * 128,
    engine_socket="/" * 4096,
    events_url="tcp://",
    capacity_bytes=LARGEST,
    observed=dict.fromkeys(SNAPSHOT_TYPES, OBSERVED),
)
STATS = NodeStats(
    at=MAX_TIME_S, node="a", epoch="e", uptime_s=0.0, armed=False, pool=PoolStats(), totals=Totals(), refused={},
    tenants=[], other_tenants=None, pins=[], engines=[], observed={},
)  # fmt: skip
ACK = Ack("quotas", LARGEST, "nonce", "d" * 64, 1.0)
_replies: msgspec.msgpack.Decoder[ControlReply] = msgspec.msgpack.Decoder(ControlReply)
changed = msgspec.structs.replace


def observed(**fields: Any) -> dict[str, Observed]:
    return {"quotas": changed(OBSERVED, **fields)}


INVALID_STATS = [
    *(changed(STATS, at=at) for at in (math.nan, math.inf, -1.0, 1e300)),
    changed(STATS, start=CacheStart("cold", math.nan)),
    *(changed(STATS, node=name) for name in ("n" * 129, "a\0")),
    *(changed(STATS, tenants=[TenantStats(name)]) for name in ("n" * 129, "a\0")),
    changed(STATS, process=ProcessStats(cpu_s=math.inf)),
    changed(STATS, process=ProcessStats(loop_lag=Histogram([], [0], math.nan))),
]
INVALID: list[ControlReply] = [
    *(changed(WELCOME, node=name) for name in ("n" * 129, "a\0")),
    *(changed(WELCOME, epoch=epoch) for epoch in ("e" * 129, "a\0")),
    *(changed(WELCOME, release=release) for release in ("r" * 129, "a\0")),
    *(changed(WELCOME, pid=pid) for pid in (-1, 2**63)),
    *(changed(WELCOME, capacity_bytes=size) for size in (-1, 2**63)),
    changed(WELCOME, engine_socket="a\0"),
    changed(WELCOME, events_url="a\0"),
    *(changed(WELCOME, observed=observed(generation=generation)) for generation in (-1, 2**63)),
    *(changed(WELCOME, observed=observed(digest=digest)) for digest in ("d" * 65, "a\0")),
    *(changed(WELCOME, observed=observed(store=store)) for store in ("s" * 129, "a\0")),
    *(changed(ACK, generation=generation) for generation in (-1, 2**63)),
    changed(ACK, digest="a\0"),
    changed(ACK, applied_s=math.nan),
    Nack("quotas", 1, "nonce", [], Observed(2**63, "d", "s")),
    Resized("nonce", 2**63),
    *(Description("nonce", 1, stats, {}) for stats in INVALID_STATS),
]


@pytest.mark.parametrize("reply", INVALID)
def test_an_answer_with_an_invalid_value_is_malformed(reply: ControlReply) -> None:
    with pytest.raises(ProtocolError):
        decode(_replies, encode(reply))


async def test_the_largest_valid_answer_can_be_stored(database: Database) -> None:
    fleet, journal = Fleet(), NodeJournal(database, 100)
    journal.record_join(fleet.welcome(decode(_replies, encode(WELCOME)), ("ipc://a", ""), 1.0, 1.0))
    await journal.flush()
    async with database.read() as session:
        (row,) = await nodes.all_nodes(session)
        observations = await nodes.all_observations(session)
    assert (row.epoch, row.pid, row.capacity_bytes) == (WELCOME.epoch, LARGEST, LARGEST)
    assert {(entry.type, entry.generation) for entry in observations} == {(kind, LARGEST) for kind in SNAPSHOT_TYPES}


@pytest.mark.parametrize("event", [NodeStopped(math.nan), NodeStopped(math.inf), NodeStopped(-1.0), *INVALID_STATS])
async def test_an_event_with_an_invalid_value_is_dropped_and_counted(event: Event) -> None:
    fleet, bus = Fleet(), event_bus()
    intake = EventIntake(fleet, bus, lambda node, stats: None)

    async def resync() -> None:
        raise AssertionError("no event was missed")

    fleet.welcome(WELCOME, ("ipc://a", ""), 0.0, 0.0)
    subscriber = Subscriber(WELCOME.node, intake, resync)
    for sent in (event, changed(STATS, epoch=WELCOME.epoch), NodeStopped(1.0)):
        frames = [name_of(sent).encode(), pack("<Q", 1), encode(sent)]
        assert not subscriber.take(frames, 1.0, 1.0) or sent is not event
    assert (intake.malformed, intake.events) == (1, 2)
    assert [published.at for published in bus.recent if published.name == "node.stopped"] == [1.0]
    assert fleet.nodes[WELCOME.node].clock_offset_s == MAX_TIME_S - 1
