"""A real data plane with a disk tier: blocks outlive their eviction, a kill, a stop and a disk that fails."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dataplane.client import Client, attach
from dataplane.protocol.control.scopes import Invalidate, Scope
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, wait_for
from tests.dataplane.tiering.chains import BLOCKS, connect, content, load, push_out, right, store

LONGEST_PROBE_S = 60


def settings(folder: Path, **more: str) -> dict[str, str]:
    return {"dataplane__disk_tier_directories": str(folder / "tier"), "dataplane__disk_tier_bytes": "256MiB", **more}


@pytest.fixture
def plane(make_plane: Callable[..., Plane], tmp_path: Path) -> Plane:
    return make_plane(**settings(tmp_path)).start()


def in_tier(client: Client, chain: Sequence[bytes]) -> int:
    found = client.lookup_tiers(chain, counted=False)
    return found.ready + found.coming


def on_disk(plane: Plane, blocks: int) -> None:
    """Wait until so many blocks were copied."""
    wait_for(lambda: plane.describe().tiers[0].blocks >= blocks, "the blocks are on disk")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_disk_keeps_blocks_evicted_from_memory(plane: Plane, end: str) -> None:
    chain, dead = make.keys(BLOCKS, "chain"), make.keys(4, "dead")
    with connect(plane) as client:
        store(client, chain, "acme")
        store(client, dead, "rival")
        on_disk(plane, BLOCKS + 4)
    with plane.manager() as manager:
        manager.ask(Invalidate("n", Scope(tenant="rival")))
    if end == "stop":
        plane.stop()
    else:
        plane.kill()
    plane.start()
    with connect(plane) as client:
        wait_for(lambda: client.lookup_tiers(chain).coming == BLOCKS, "the chain was found on disk")
        assert client.lookup(chain) == 0, "memory began empty"
        load(client, chain, BLOCKS)
        assert right(client, chain) == BLOCKS
        assert in_tier(client, dead) == 0, "what was invalidated does not come back"


def test_flipped_bytes_are_a_miss_and_never_data(plane: Plane, tmp_path: Path) -> None:
    chain = make.keys(BLOCKS, "chain")
    with connect(plane) as client:
        store(client, chain)
        on_disk(plane, BLOCKS)
        push_out(client, chain)
        expected = content(chain[5])
        for segment in (tmp_path / "tier").rglob("*"):
            if segment.is_file() and expected in (data := segment.read_bytes()):
                with segment.open("r+b") as file:
                    file.seek(data.index(expected) + 100)
                    file.write(b"wrong")
        load(client, chain, 5)
        wait_for(lambda: in_tier(client, chain) == 5, "the bad block is forgotten")
        assert right(client, chain) == 5


def test_a_prefetch_of_blocks_that_no_tier_holds_does_nothing(plane: Plane) -> None:
    with connect(plane) as client:
        wait_for(lambda: client.prefetch(make.keys(4, "nowhere")), "the directory arrived")
        assert client.lookup_tiers(make.keys(4, "nowhere"))[:5] == (0, 0, 0.0, 0, 0)
        for wait_s in (0.0, -1.0, float("nan"), 301.0):
            with pytest.raises(ValueError, match="wait_s"):
                client.prefetch(make.keys(1), wait_s=wait_s)
        wait_for(lambda: client.cancel_prefetch(make.keys(4, "nowhere")), "no answer is outstanding")
        assert plane.describe().totals.malformed_messages == 0


def test_a_prefetch_goes_on_with_the_first_space_that_is_left(plane: Plane) -> None:
    chain = make.keys(4096, "long")
    spaces = [make.space(rank=rank, world_size=4) for rank in range(4)]
    with attach(plane.socket, spaces, timeout_s=30) as client:
        wait_for(lambda: client.prefetch(make.keys(1)), "the directory arrived")
        with plane.frozen():
            while (first := client.prefetch(chain)) == client.spaces:
                pass  # until the socket has no room
            assert client.prefetch(chain, first_space=first) == first
            assert not client.cancel_prefetch(chain)
        sent = [first]

        def all_requested() -> bool:
            sent.append(client.prefetch(chain, first_space=sent[-1]))
            return sent[-1] == client.spaces

        wait_for(all_requested, "the data plane takes them")
        assert client.prefetch(chain, first_space=client.spaces) == client.spaces


def test_a_directory_of_another_node_is_left_alone_and_memory_is_served(plane: Plane, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    second = Plane(folder, settings(tmp_path)).start()
    try:
        wait_for(lambda: "tier.lost" in second.log(), "the log says so")
        assert "not opened: " in second.log()
        with connect(second) as client:
            assert store(client, make.keys(4, "chain")) == 4
            assert client.lookup_tiers(make.keys(4, "chain"))[:5] == (4, 0, 0.0, 0, 0)
    finally:
        second.kill()


def test_a_disk_that_fails_stops_no_store_and_serves_again_when_it_is_back(plane: Plane, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    with connect(plane) as client:
        store(client, make.keys(4, "before"))
        on_disk(plane, 4)
        tier.rename(tmp_path / "away")
        for number in range(20):
            assert store(client, make.keys(BLOCKS, ("during", number))) == BLOCKS
        (tmp_path / "away").rename(tier)
        wait_for(lambda: plane.describe().tiers[0].serves, "a probe finds it", 2 * LONGEST_PROBE_S)
        wait_for(lambda: in_tier(client, make.keys(4, "before")) == 4, "it serves")
    assert plane.stop() == 0


def test_a_stop_during_copies_and_loads_ends(plane: Plane) -> None:
    with connect(plane) as client:
        for number in range(32):
            store(client, make.keys(BLOCKS, number))
        client.prefetch(make.keys(BLOCKS, 0))
        plane.signal(signal.SIGTERM)
        assert plane.process is not None
        assert plane.process.wait(60) == 0
