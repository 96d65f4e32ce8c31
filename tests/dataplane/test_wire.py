"""Messages on the wire: one example of each is frozen, so that no change goes unnoticed."""

from __future__ import annotations

import json
from types import UnionType
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.base.field_errors import described
from dataplane.protocol import engine, events, join, usage
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.lookups import Blocks, CachedBlock, ListBlocks, Looked, LookupChain, SpaceHits
from dataplane.protocol.control.messages import ControlRefused, ControlReply, ControlRequest
from dataplane.protocol.control.moves import CancelMove, Move, Moved, MoveState, ReadMove
from dataplane.protocol.control.nodes import (
    DescribeNode,
    Description,
    Drain,
    Expel,
    Expelled,
    Hello,
    NodeDrained,
    Resize,
    Resized,
    Welcome,
)
from dataplane.protocol.control.prefixes import ListPrefixes, Prefix, PrefixesListed, PrefixKeys, Trace, TracePart
from dataplane.protocol.control.records import (
    PinSpec,
    PolicySpec,
    QuotaSpec,
    encode_pins,
    encode_policies,
    encode_quotas,
    encode_tiers,
)
from dataplane.protocol.control.requests import FindRequests, RequestRecord, RequestsFound
from dataplane.protocol.control.scopes import (
    Clear,
    ClearGateway,
    CountBlocks,
    Counted,
    Demote,
    Invalidate,
    Scope,
    Swept,
)
from dataplane.protocol.control.snapshots import Ack, Bodies, Fault, Nack, NeedBodies, Observed, Snapshot
from dataplane.protocol.control.verification import (
    DigestEngine,
    EngineDigests,
    Verification,
    VerificationState,
    Verified,
    Verify,
)
from dataplane.protocol.spaces import Space
from dataplane.protocol.stats.engines import EngineStats
from dataplane.protocol.stats.gateways import GatewayInstance, GatewayOperation, GatewayStats
from dataplane.protocol.stats.histogram import Histogram
from dataplane.protocol.stats.node import NodeStats, ObservedDigest
from dataplane.protocol.stats.pins import GpuCopyPoolStats, PinStats
from dataplane.protocol.stats.pool import Evictions, PolicyStats, PoolStats, SpaceStats, SweepStats, Totals
from dataplane.protocol.stats.processes import ProcessStats
from dataplane.protocol.stats.tenants import TenantStats
from dataplane.protocol.tiers import TierSpec
from tests.golden_file import Golden

SPACE = Space("llama", "r1", "NHD", "bf16", 1, 4, 1, 2, 4096)
KEY = bytes(range(32))
OBSERVED = Observed(7, "d" * 64, "store-1")
FAULT = Fault("quotas[3].limit_bytes", "bad_field", "expected `int`")
BLOCK = CachedBlock(
    key="0a" * 32,
    tenant="team-a",
    model="llama",
    space="f" * 32,
    tier="l1",
    state="ready",
    bytes=4000,
    charged_bytes=4096,
    leases=2,
    pins=["system"],
    strength="guaranteed",
    guaranteed=True,
    stored_at=1.5,
    used_at=2.5,
    hits=3,
    checksum="0b" * 16,
    parent="0c" * 32,
    descriptor=4,
    segment=5,
    offset=8192,
)
TIERS_USED = {"disk": usage.TierUsageCounters(5, 256, 4096)}
RECORD = RequestRecord(
    "cmpl-1", "team-a", "vllm 1", "llama", 1.5, 1030, 16, {"disk": 512}, 472, "evicted", "room", 1.25
)
USED = usage.UsageCounters(
    1, "a", "llama", "f" * 32, 5, 512, 256, 2, 8192, 1, 4096, {"pool_full": 3}, 16384, TIERS_USED
)
TENANT = TenantStats(
    tenant="a",
    bytes=4096,
    blocks=1,
    limit_bytes=8192,
    over_limit=False,
    managed=True,
    floor_bytes=2048,
    effective_floor_bytes=1024,
    weight=2.0,
    pin_budget_bytes=512,
    pinned_bytes=256,
    store_rate_bytes=1_000_000,
    on_exceed="reject",
    mode="observe",
    would_refuse_blocks=6,
    refused={"over_limit": 5},
    requested_blocks=1,
    hit_blocks=2,
    stored_blocks=3,
    evicted_blocks=4,
    refused_blocks=5,
    evicted={"room": 4},
    hit_tokens=512,
    hit_bytes=8192,
)
DURATIONS = Histogram([0.5], [1, 2], 3.5)
STATS = NodeStats(
    at=1.5,
    node="node-1",
    epoch="00000000000000ab",
    uptime_s=2.5,
    armed=True,
    pool=msgspec.structs.replace(PoolStats(*range(1, 15)), huge_pages=True, locked=True),
    totals=Totals(*range(1, 19)),
    refused={"pool_full": 3},
    tenants=[TENANT],
    other_tenants=TENANT,
    pins=[PinStats("system", 4, 3, 2, 1, True, "guaranteed", 2, 9.5, "gpu", 6, 24576)],
    engines=[EngineStats(1, 2, "group", "vllm", 3.5, ["llama"], True, 4, 5, 6, 7, 8, False, [2])],
    policy=PolicyStats("arc", True, 120.0, True, 3.5, 1, 2, 0.97, 0.95),
    spaces=[SpaceStats("f" * 32, "llama", "r1", "bf16", 4, 2, 4096, 1, 4096, 0, 1, "lmcache")],
    sweeps=[SweepStats(1, "demote", 2, 3)],
    adopted_blocks=1,
    observed={"quotas": ObservedDigest(7, "d" * 64, "store-1")},
    draining=True,
    gateway=GatewayStats(
        gateway="lmcache",
        url="tcp://127.0.0.1:5555",
        memory_name="lmcache_l1_pool_1",
        memory_bytes=4096,
        chunk_tokens=256,
        connections=1,
        lookups=2,
        lookups_ended={"expired": 3},
        instances=[GatewayInstance(5, 6, 7, "llama", 8, "lmcache:2x4", "bfloat16", 9, True, 1.5, False)],
        operations=[GatewayOperation("lookup", 10, {"refused": 11}, 0.5, [12, 13])],
        bounds_s=[0.001],
        unanswered=14,
        stored_bytes=15,
        read_bytes=16,
        chunks_in=17,
        chunks_out=18,
        requested_chunks=19,
        hit_chunks=20,
    ),
    gpu_copy_pools=[
        msgspec.structs.replace(
            GpuCopyPoolStats("7717ca5e-0000-4000-8000-000000000000", "H200", *range(1, 14)), problem="out of memory"
        )
    ],
    operations={"lookup": DURATIONS},
    evicted={"room": Evictions(4, 16384)},
    evicted_idle=DURATIONS,
    block_lifetime=DURATIONS,
    reuse_gap=DURATIONS,
    events_dropped={"blocks.stored": 2},
    process=ProcessStats(1.5, 4096, 9, [3, 2, 1], 0.5, DURATIONS, "0.1.0", "c" * 40, "3.11.7"),
)

EXAMPLES: dict[str, tuple[UnionType, list[Any]]] = {
    "engine requests": (
        engine.EngineRequest,
        [
            engine.Attach(1, 2, "group", [engine.SpaceRequest(SPACE, False)], "vllm 0.33", False, 3, 2**63 + 7, [4]),
            engine.Reserve(2, 3, "team-a", KEY, 4096, KEY),
            engine.HintedReserve(15, 3, "team-a", KEY, 4096, KEY, 60.0, 600.0),
            engine.Commit(3, 4, b"\x00\x00\x00\x00", bytes(16)),
            engine.Abort(4, 5),
            engine.LeaseRequest(5, 3, KEY),
            engine.Report(9, b"\x01\x00\x00\x00", bytes(8)),
            engine.Map(6, [1, 2]),
            engine.Detach(7),
            engine.Ping(8, 1),
            engine.MapGpuCopies(14, "7717ca5e-0000-4000-8000-000000000000", [3], [2], True),
            engine.MapTiers(16),
            engine.Prefetch(17, 3, KEY, 5.0),
            engine.ReportRequest(18, "cmpl-1", "team-a", 1030, 16, {"disk": 512}, 472, "", KEY, KEY),
            engine.Traced(15, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", engine.Abort(15, 7)),
        ],
    ),
    "engine answers": (
        engine.EngineReply,
        [
            engine.Attached(
                1,
                2,
                "node-1",
                2**63 + 5,
                [3],
                True,
                30.0,
                2**63 + 7,
                True,
                hint_max_s=3600.0,
                tiers=True,
                requests=True,
            ),
            engine.Reserved(2, 4, b"\x00", b"\x01\x00\x00\x00", bytes(8), [engine.SegmentGrant(1, 4096, True)]),
            engine.BlocksCommitted(3, 1),
            engine.Aborted(4),
            engine.Leased(5, b"\x01\x00\x00\x00"),
            engine.Reported(9, 1),
            engine.SegmentsMapped(6, [engine.SegmentGrant(2, 4096, False)]),
            engine.Detached(7),
            engine.Serving(0, 9),
            engine.Refused(9, int(Code.BAD_SALT), "expected", "tenant"),
            engine.GpuCopiesMapped(14, [engine.ExtentGrant(3, bytes(64), 512, 1 << 25)]),
            engine.TiersMapped(16, 8192),
            engine.Prefetching(17),
            engine.RequestReported(18, "evicted", "room", 1.5),
        ],
    ),
    "control requests": (
        ControlRequest,
        [
            Hello(1, "manager-1"),
            Snapshot("quotas", "store-1", 7, "n", "d" * 64, b"body", "00-trace", True),
            Bodies("n", {"d" * 64: KEY}, False),
            DescribeNode("n", True),
            Invalidate("n", Scope("team-a", "llama", "f" * 32, KEY)),
            Demote("n", Scope(tenant="")),
            Clear("n", True),
            ClearGateway("n", "lmcache", True),
            DigestEngine("n", "lmcache", 7, [1, 2], 2, True),
            CountBlocks("n", "clear", Scope(), True),
            LookupChain("n", "llama", KEY, "team-a", 3),
            ListBlocks("n", "", "llama", "f" * 32, KEY, 7, 5, "lmcache"),
            Verify("n", Scope(model="llama")),
            Verification("n", 3),
            Move("n", Scope(tenant=""), "disk", True, 1.5, True),
            ReadMove("n", 3),
            CancelMove("n", 3),
            ListPrefixes("n", "hits", "", 5),
            PrefixKeys("n", "p-1"),
            Trace("n", 1.5, 7),
            usage.ReadUsage("n", 1.5, 7),
            Resize("n", 4096),
            Drain("n", True),
            Expel("n", 7, True, False, True),
            FindRequests("n", "cmpl-1"),
        ],
    ),
    "control answers": (
        ControlReply,
        [
            Welcome(
                1, "node-1", "ab", 2, "0.1", "/e.sock", "ipc:///ev", 4096, {"quotas": OBSERVED}, {"a": "b"}, ("quotas",)
            ),
            Ack("quotas", 7, "n", "d" * 64, 0.5),
            Nack("pins", 7, "n", [FAULT], OBSERVED),
            NeedBodies("n", ["d" * 64]),
            Description("n", 3, STATS, {"quotas": OBSERVED}, ["a fault"]),
            Swept("n", 1, 2, 8192),
            EngineDigests("n", [["0" * 32]]),
            Counted("n", 2, 8192),
            Looked("n", [SpaceHits("f" * 32, SPACE, {"l1": 2}, {"l1": 3})], 4),
            Blocks("n", [BLOCK], 8),
            Verified("n", VerificationState(3, 9, 8, 1, 1, 0, 0, 1.5, 2.5)),
            Moved("n", MoveState(3, "disk", 9, 8192, 7, 6144, 1, 5, 4096, {"limit": 1}, 1.5, 2.5, True)),
            PrefixesListed("n", [Prefix("p-1", "team-a", "llama", 1, 2, 4096, 0, 1, 1.5, KEY)]),
            TracePart("n", b"{}\n", 8),
            usage.UsageRead("n", 1.5, [USED], 8),
            Resized("n", 4096),
            NodeDrained("n", True),
            Expelled("n", 4711, [7, 8], 3, True, False, 4096, [4711]),
            RequestsFound("n", [RECORD]),
            ControlRefused("malformed", "expected", "field", "n"),
        ],
    ),
    "join answers": (
        join.JoinReply,
        [
            join.Joined("node-1", ["k" * 40], "tcp://10.0.0.1:1", "tcp://10.0.0.1:2"),
            join.JoinRefused("bad_token", "expected"),
        ],
    ),
    "events": (
        events.Event,
        [
            STATS,
            events.NodeStarted(1.5, "node-1", "ab", 2, 4096),
            events.NodeStopped(1.5),
            events.EngineAttached(1.5, 1, 2, "group", "vllm", ["llama"]),
            events.EngineDetached(1.5, 1, 2, "group", "say_detached", 3),
            events.EngineReleased(1.5, 1, 2, "group", 3, 4096),
            events.LeaseBroken(1.5, 1, "process_gone", 3),
            events.EngineRefused(1.5, 2, 1000, "not_allowed", "uid"),
            events.EngineExpelled(1.5, 1, 2, "group", 3),
            events.EngineReadmitted(1.5, 1, 2, "group"),
            events.EngineKilled(1.5, 1, 2, "group"),
            events.BlocksStored(1.5, 1, "llama", "a", 2, 8192),
            events.BlocksEvicted(1.5, "a", "room", 2, 8192),
            events.BlocksRefused(1.5, 1, "a", "pool_full", 2, 8192),
            events.ReservationAborted(1.5, 1, "a", 2, 8192),
            events.ReservationExpired(1.5, 1, 2, "group", 2, 8192),
            events.SegmentCreated(1.5, 1, "llama", 4096),
            events.SegmentRetired(1.5, 1, "llama", 4096),
            events.MemoryAdopted(1.5, 1, 4096, 2, 3, 0.25),
            events.CacheStartedCold(1.5, "the memory was released by larder down", True, 4, 16384),
            events.IdJournalNearlyFilled(1.5, 8192, 10_000),
            events.BlockCorrupted(1.5, "a", "llama", 4096, 1),
            events.SweepEnded(1.5, 1, "invalidate", 2),
            events.VerificationEnded(1.5, 3, 8, 1, 1),
            events.MoveEnded(1.5, 3, "disk", 7, 5, 1),
            events.TierLost(1.5, "disk", "blocks are late"),
            events.TierRecovered(1.5, "disk"),
            events.AdmissionChanged(1.5, True, 3.5),
            events.PoolResized(1.5, 4096),
            events.SnapshotApplied(1.5, "quotas", 7, "d" * 64, "00-trace"),
            events.SnapshotRefused(1.5, "quotas", 7, 2),
            events.PinDegraded(1.5, "system", "a", 2),
            events.PinExpired(1.5, "system", "a"),
            events.GpuCopyPoolCreated(1.5, "7717ca5e", "H200", 1 << 30),
            events.GpuCopyPoolFailed(1.5, "7717ca5e", "out of memory"),
            events.GatewayNameLost(1.5, "lmcache", "it was removed"),
            events.GatewayNameRestored(1.5, "lmcache"),
        ],
    ),
    "bodies": (
        list[QuotaSpec] | list[PinSpec],  # type: ignore[dict-item]
        [],
    ),
}


def frozen() -> dict[str, dict[str, str]]:
    pages = {
        page: {str(type(each).__struct_config__.tag): encode(each).hex() for each in examples}
        for page, (_, examples) in EXAMPLES.items()
        if examples
    }
    asks = join.Join(1, "node-1", "0.1", {"a": "b"}, "tcp://10.0.0.1:1", "tcp://10.0.0.1:2", "t1", KEY)
    pages["join questions"] = {"join": encode(asks).hex()}
    pages["bodies"] = {
        "quotas": encode_quotas([QuotaSpec("b"), QuotaSpec("a", 4096)]).hex(),
        "pins": encode_pins([PinSpec("y", "llama", "", "d" * 64), PinSpec("x", "llama", "a", "e" * 64, 9.5)]).hex(),
        "policies": encode_policies([PolicySpec("default", "arc", True)]).hex(),
        "tiers": encode_tiers(
            [
                TierSpec("shared", "redis", 1 << 40, {"url": "redis://cache"}, 1, "second_touch", 2.5, 1 << 24),
                TierSpec("disk", "disk", 1 << 30),
            ]
        ).hex(),
    }
    return pages


def test_messages_are_stable(golden: Golden) -> None:
    golden("wire.json", json.dumps(frozen(), indent=1) + "\n")


@pytest.mark.parametrize("page", [page for page, (_, examples) in EXAMPLES.items() if examples])
def test_every_message_has_an_example_and_comes_back_as_it_went(page: str) -> None:
    union, examples = EXAMPLES[page]
    assert {type(each) for each in examples} == set(get_args(union))
    assert len({type(each).__struct_config__.tag for each in examples}) == len(examples)
    for each in examples:
        assert decode(decoder(union), encode(each)) == each


def test_the_same_intent_has_the_same_digest() -> None:
    one, two = QuotaSpec("a", 1), QuotaSpec("b", 2)
    assert encode_quotas([one, two]) == encode_quotas([two, one])
    first, second = PinSpec("a", "m", "", "d"), PinSpec("b", "m", "", "d")
    assert encode_pins([first, second]) == encode_pins([second, first])


def test_requests_with_more_fields_than_known_are_malformed() -> None:
    raw = msgspec.msgpack.decode(encode(engine.Detach(1)))
    with pytest.raises(ProtocolError) as caught:
        decode(decoder(engine.EngineRequest), msgspec.msgpack.encode([*raw, "more"]))
    assert caught.value.code is Code.MALFORMED
    with pytest.raises(ProtocolError, match="unknown"):
        decode(decoder(ControlRequest), msgspec.msgpack.encode({"op": "describe", "nonce": "", "x": 1}))


@given(data=st.binary(max_size=300))
def test_no_bytes_raise_anything_but_protocol_errors(data: bytes) -> None:
    for union in (engine.EngineRequest, engine.EngineReply, ControlRequest, events.Event):
        try:
            decode(decoder(union), data)
        except ProtocolError as error:
            assert error.code is Code.MALFORMED  # noqa: PT017 (a message of random bytes is possible)


@pytest.mark.parametrize(
    ("message", "path", "text"),
    [
        ("Expected `int`, got `str` - at `$.limit_bytes`", "limit_bytes", "expected bytes as a whole number, got text"),
        ("Expected `int` - at `$[3].a`", "[3].a", "expected a whole number"),
        ("no path", "", "no path"),
        ("Expected `int` - at `$`", "", "expected a whole number"),
    ],
)
def test_paths_are_cut_out_of_messages(message: str, path: str, text: str) -> None:
    assert described(message) == (path, text)


def test_a_malformed_message_names_its_field() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(decoder(ControlRequest), msgspec.msgpack.encode({"op": "hello", "version": "1", "manager": ""}))
    assert caught.value.field == "version"
