"""Lookups, listings, verifications, clearing and trials of a running data plane."""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterator

import msgspec
import pytest

from dataplane.client import Client
from dataplane.protocol.checksums import checksum
from dataplane.protocol.control.lookups import MAX_LISTED_BLOCKS, Blocks, CachedBlock, ListBlocks, Looked, LookupChain
from dataplane.protocol.control.messages import VERSION as CONTROL_VERSION
from dataplane.protocol.control.messages import ControlRefused
from dataplane.protocol.control.moves import Move, ReadMove
from dataplane.protocol.control.nodes import Hello
from dataplane.protocol.control.scopes import Clear, Scope, Swept
from dataplane.protocol.control.snapshots import Ack, Nack, NeedBodies
from dataplane.protocol.control.verification import Verification, VerificationState, Verified, Verify
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect, store
from tests.dataplane.plane import Manager, Plane, contents, wait_for

PAGE = 4096


@pytest.fixture
def engine(plane: Plane) -> Iterator[Client]:
    with connect(plane) as client:
        yield client


def blocks(manager: Manager, **fields: object) -> list[CachedBlock]:
    found: list[CachedBlock] = []
    after = 0
    while True:
        answer = manager.ask(ListBlocks("n", after=after, **fields))  # type: ignore[arg-type]
        assert isinstance(answer, Blocks)
        found += answer.blocks
        after = answer.next
        if not after:
            return found


def test_a_node_reports_the_hits_of_an_engine(engine: Client, manager: Manager) -> None:
    chain = make.keys(5)
    store(engine, chain[:3], tenant="a")
    answer = manager.ask(LookupChain("n", make.MODEL, make.packed(chain), "a"))
    assert isinstance(answer, Looked)
    (space,) = answer.spaces
    assert (space.identity, space.hits, space.resident) == (make.space().identity(), {"l1": 3}, {"l1": 3})
    assert space.hits["l1"] == engine.lookup(chain)


def test_blocks_are_listed_with_their_leases(engine: Client, manager: Manager) -> None:
    chain = make.keys(5)
    store(engine, chain, tenant="a")
    with engine.acquire(chain[:2]):
        found = blocks(manager, limit=2)
    assert [each.key for each in found] == [key.hex() for key in chain]
    assert [each.leases for each in found] == [1, 1, 0, 0, 0]
    assert [each.checksum for each in found] == [checksum(data).hex() for data in contents(chain, PAGE)]
    (one,) = blocks(manager, keys=chain[3])
    assert (one.key, one.tenant, one.state) == (chain[3].hex(), "a", "ready")


def verified(manager: Manager, scope: Scope | None = None) -> VerificationState:
    answer = manager.ask(Verify("n", scope or Scope()))
    assert isinstance(answer, Verified)
    number = answer.state.number
    states: list[VerificationState] = []

    def ended() -> bool:
        states[:] = [manager.ask(Verification("n", number)).state]
        return states[0].ended_at is not None

    wait_for(ended, "the verification ends")
    return states[0]


def test_verification_finds_a_changed_block(plane: Plane, engine: Client, manager: Manager) -> None:
    chain = make.keys(40)
    store(engine, chain, tenant="a")
    whole = verified(manager)
    assert (whole.blocks, whole.checked, whole.corrupt, whole.without_checksum) == (40, 40, 0, 0)
    (block,) = blocks(manager, keys=chain[7])
    path = f"/proc/{plane.pid}/fd/{segment_fd(plane, block.segment)}"
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[block.offset + 100] ^= 1
    state = verified(manager, Scope(tenant="a"))
    assert (state.checked, state.corrupt) == (40, 1)
    assert engine.lookup(chain) == 7
    assert manager.describe().totals.corrupt_blocks == 1
    wait_for(lambda: '"block.corrupted"' in plane.log(), "the log says so")
    lines = [json.loads(line) for line in plane.log().splitlines() if line.startswith("{")]
    assert [line["client"] for line in lines if line["event"] == "block.corrupted"] == [0]


def segment_fd(plane: Plane, segment: int) -> int:
    """A file descriptor of a segment in the data plane's process."""
    folder = f"/proc/{plane.pid}/fd"
    for fd in os.listdir(folder):
        if os.readlink(f"{folder}/{fd}").startswith(f"/memfd:larder-segment-{segment} "):
            return int(fd)
    raise AssertionError(f"segment {segment} has no memory")


def test_clear_empties_the_node(plane: Plane, engine: Client, manager: Manager) -> None:
    store(engine, make.keys(5), tenant="a")
    store(engine, make.keys(5, "b"))
    assert isinstance(manager.ask(Clear("n")), Swept)
    assert (engine.lookup(make.keys(5)), engine.lookup(make.keys(5, "b"))) == (0, 0)
    plane.wait_stats(lambda stats: not stats.pool.blocks, "nothing is left")


def dry(snapshot: object) -> object:
    return msgspec.structs.replace(snapshot, dry_run=True)  # type: ignore[type-var]


def test_a_trial_is_answered_as_the_snapshot_would_be_and_changes_nothing(
    plane: Plane, engine: Client, manager: Manager
) -> None:
    store(engine, make.keys(5), tenant="a")
    assert isinstance(manager.ask(make.quotas({"a": None}, 3)), Ack)
    before = manager.ask(Hello(CONTROL_VERSION, "x")).observed
    answer = manager.ask(dry(make.quotas({"a": PAGE}, 4)))
    assert isinstance(answer, Ack)
    assert (answer.type, answer.generation) == ("quotas", 4)
    assert isinstance(manager.ask(dry(make.policy(4, algorithm="fifo"))), Ack)
    snapshot, bodies = make.pins([make.pin("x", make.keys(2))], 4)
    assert isinstance(manager.push(dry(snapshot), bodies), Ack)  # type: ignore[arg-type]
    assert manager.ask(Hello(CONTROL_VERSION, "x")).observed == before
    stats = manager.describe()
    assert (stats.policy.algorithm, stats.pins, stats.pool.blocks) == ("lru", [], 5)
    assert [tenant.limit_bytes for tenant in stats.tenants] == [None]
    assert isinstance(manager.ask(snapshot), NeedBodies), "a trial leaves no bodies behind"


def test_a_trial_finds_the_faults_of_the_snapshot(manager: Manager) -> None:
    assert isinstance(manager.ask(make.quotas({"a": 1}, 3)), Ack)
    pins, bodies = make.pins([make.pin("x", make.keys(2), tenant="a@b")])
    for snapshot in (
        make.quotas({"b@d": 1, "c": -1}, 4),
        make.quotas({"a": 1}, 2),
        make.policy(1, high_watermark=0.1),
        make.snapshot("pins", b"\xc1", 1),
        pins,
    ):
        tried = manager.push(dry(snapshot), bodies)  # type: ignore[arg-type]
        meant = manager.push(snapshot, bodies)
        assert isinstance(tried, Nack)
        assert tried == meant


def test_wrong_questions_are_refused(manager: Manager) -> None:
    for message, code, field in (
        (LookupChain("n", "m", b""), "bad_keys", "keys"),
        (LookupChain("n", "m", bytes(33)), "bad_keys", "keys"),
        (LookupChain("n", "m", bytes(32), after=-1), "bad_field", "after"),
        (LookupChain("n", "", bytes(32)), "bad_field", "model"),
        (LookupChain("n", "m" * 300, bytes(32)), "bad_field", "model"),
        (LookupChain("n", "m", bytes(32), "a/b"), "bad_salt", "tenant"),
        (ListBlocks("n", after=-1), "bad_field", "after"),
        (ListBlocks("n", limit=0), "bad_field", "limit"),
        (ListBlocks("n", limit=MAX_LISTED_BLOCKS + 1), "bad_field", "limit"),
        (ListBlocks("n", tenant="a@b"), "bad_salt", "tenant"),
        (ListBlocks("n", keys=b"short"), "bad_keys", "keys"),
        (Verify("n", Scope(tenant="a/b")), "bad_salt", "scope.tenant"),
        (Verification("n", 7), "unknown_verification", "number"),
        (Move("n", Scope(tenant=""), "disk"), "unknown_tier", "tier"),
        (Move("n", Scope(tenant=""), "disk", deadline_s=math.nan), "bad_field", "deadline_s"),
        (ReadMove("n", 7), "unknown_tier", "number"),
    ):
        answer = manager.ask(message)
        assert isinstance(answer, ControlRefused)
        assert (answer.code, answer.field, answer.nonce) == (code, field, "n")
