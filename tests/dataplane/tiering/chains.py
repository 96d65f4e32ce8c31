"""Chains of blocks whose bytes follow from their keys, and records of tiers, for tests with a real data plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from dataplane.client import Client
from dataplane.protocol.control.moves import Move, Moved, MoveState, ReadMove
from dataplane.protocol.control.records import encode_tiers
from dataplane.protocol.control.snapshots import Ack
from dataplane.protocol.stats.tiers import TierStats
from dataplane.protocol.tiers import TierSpec
from tests.dataplane import blocks as blocks_of
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, wait_for
from tests.tiers.s3_server import BUCKET, S3Server

NBYTES = 64 << 10
BLOCKS = 16
"""Blocks of a chain; the pool has room for 256."""


def connect(plane: Plane) -> Client:
    return blocks_of.connect(plane, make.space(block_bytes=NBYTES))


def store(client: Client, chain: Sequence[bytes], tenant: str = "") -> int:
    return blocks_of.store(client, chain, NBYTES, tenant)


read = partial(blocks_of.read, nbytes=NBYTES)


def push_out(client: Client, chain: Sequence[bytes]) -> None:
    """Store until a chain is in memory no more."""
    number = 0
    while client.lookup(chain):
        store(client, make.keys(BLOCKS, ("filler", number)))
        number += 1


def load(client: Client, chain: Sequence[bytes], blocks: int) -> None:
    """Ask for a chain until so many of its blocks are in memory."""

    def arrived() -> bool:
        if client.lookup(chain) == blocks:
            return True
        client.prefetch(chain, wait_s=60.0)
        return False

    wait_for(arrived, f"{blocks} blocks are loaded")


def disk_tier(folder: Path, name: str = "fast", segment_bytes: int = 4 << 20, **fields: object) -> TierSpec:
    parameters = {"directories": [str(folder)], "segment_bytes": segment_bytes}
    spec = {"type": "disk", "budget_bytes": 64 << 20, "parameters": parameters, **fields}
    return TierSpec(name=name, **spec)  # type: ignore[arg-type]


def set_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables that `s3_tier` names."""
    monkeypatch.setenv("TIER_KEY", "AKIATEST")
    monkeypatch.setenv("TIER_SECRET", "of the tests")


def s3_tier(server: S3Server, folder: str = "kv", **fields: object) -> TierSpec:
    parameters = {
        "url": f"s3://{BUCKET}/{folder}",
        "endpoint": server.endpoint,
        "region": "us-east-1",
        "credentials": {"access_key_id": "env:TIER_KEY", "secret_access_key": "env:TIER_SECRET"},
    }
    spec = {"type": "s3", "budget_bytes": 64 << 20, "parameters": parameters, **fields}
    return TierSpec(name="fast", **spec)  # type: ignore[arg-type]


def push(plane: Plane, generation: int, *specs: TierSpec) -> None:
    """Push a snapshot of tiers; the node acknowledges it."""
    with plane.manager() as manager:
        answer = manager.push(make.snapshot("tiers", encode_tiers(list(specs)), generation))
        assert isinstance(answer, Ack), answer


def tier(plane: Plane, name: str = "fast") -> TierStats | None:
    with plane.manager() as manager:
        return next((each for each in manager.describe(audit=False).tiers if each.name == name), None)


def known_tier(plane: Plane, name: str = "fast") -> TierStats:
    known = tier(plane, name)
    assert known is not None
    return known


def _serves(plane: Plane, name: str) -> bool:
    known = tier(plane, name)
    return known is not None and known.serves


def in_service(plane: Plane, *names: str) -> None:
    """Wait until the tiers with these names serve; "fast" by default."""
    for name in names or ("fast",):
        wait_for(partial(_serves, plane, name), f"{name} is in service")


def copied(plane: Plane, blocks: int, name: str = "fast") -> None:
    """Wait until a tier holds so many blocks."""
    wait_for(lambda: (known := tier(plane, name)) and known.blocks >= blocks, "the blocks are in the tier")


def listed(plane: Plane) -> TierStats:
    """Wait until a shared tier has been listed, and return what the node reports about it."""

    def complete() -> TierStats | None:
        known = tier(plane)
        return known if known is not None and known.serves and known.listed_blocks is None else None

    known: TierStats = wait_for(complete, "the tier is listed")
    return known


def move(plane: Plane, message: Move, until: Callable[[MoveState], object] = lambda state: False) -> MoveState:
    """Begin a move, and return its state once it has ended, or the condition holds of it."""
    with plane.manager() as manager:
        begun = manager.ask(message)
        assert isinstance(begun, Moved), begun

        def progress() -> MoveState | None:
            state: MoveState = manager.ask(ReadMove("n", begun.state.number)).state
            return state if state.ended_at is not None or until(state) else None

        state: MoveState = wait_for(progress, "the move ends")
    return state
