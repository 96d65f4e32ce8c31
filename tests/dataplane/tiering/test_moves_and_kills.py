"""A data plane that is killed while blocks move between a disk and S3: no block is lost, and no byte is wrong."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.tiers import TierSpec
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane
from tests.dataplane.tiering.chains import (
    BLOCKS,
    connect,
    copied,
    disk_tier,
    in_service,
    listed,
    load,
    move,
    push,
    right,
    s3_tier,
    set_credentials,
    store,
)
from tests.tiers.s3_server import s3_server

CHAINS = [make.keys(BLOCKS, ("kill", number)) for number in range(8)]
ROUNDS = 2


def restarted(plane: Plane, specs: list[TierSpec]) -> None:
    """Start the data plane with both tiers, and wait until it knows their blocks."""
    plane.start()
    push(plane, 1, *specs)
    in_service(plane, "nvme")
    listed(plane)


def has_released(blocks: int, state: MoveState) -> bool:
    return state.released_blocks >= blocks


@pytest.mark.full
def test_moves_that_are_killed_lose_nothing(tmp_path: Path, socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = random.Random(7)
    set_credentials(monkeypatch)
    with s3_server() as server:
        s3 = s3_tier(server, spill="off", order=1)
        plane = Plane(socket_dir)
        try:
            restarted(plane, [disk_tier(tmp_path / "t", name="nvme"), s3])
            with connect(plane) as client:
                for chain in CHAINS:
                    store(client, chain, "acme")
                copied(plane, BLOCKS * len(CHAINS), "nvme")
            specs = [disk_tier(tmp_path / "t", name="nvme", spill="off"), s3]
            for number in range(ROUNDS):
                plane.kill()
                restarted(plane, specs)
                there = ("fast", "nvme") if number % 2 == 0 else ("nvme", "fast")
                message = Move("n", Scope(tenant="acme"), there[0], release=True, source=there[1])
                move(plane, message, partial(has_released, choice.randrange(BLOCKS * len(CHAINS))))
                plane.kill()
                restarted(plane, specs)
                with connect(plane) as client:
                    for chain in CHAINS:
                        load(client, chain, BLOCKS)
                        assert right(client, chain) == BLOCKS
        finally:
            if plane.alive:
                plane.kill()
