"""The named segment of real data planes that are killed, stopped, and started again with other settings."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dataplane.memory.named import BACKUP_PREFIX, FOLDER, PREFIX, CannotName
from dataplane.recovery import named_segment
from dataplane.settings import load
from tests.dataplane import factories as make
from tests.dataplane.blocks import connect, read, store
from tests.dataplane.plane import wait_for
from tests.dataplane.recovery.support.relay import Relay
from tests.forked import run
from tests.free_port import free_port
from tests.lmcache.client import Client, prompt
from tests.lmcache.planes import Segment, check, leased, mapped, url_of
from tests.lmcache.planes import store as store_chunks
from tests.run_marks import shm_name

SEGMENT = 2 * make.MIB
CHUNKS = 3


@pytest.fixture
def new_plane(make_plane: Callable[..., Relay]) -> Callable[..., Relay]:
    return lambda **settings: make_plane(
        **{"lmcache_port": str(free_port()), "dataplane__keep_memory_s": "0", **settings}
    )


@pytest.fixture
def plane(new_plane: Callable[..., Relay]) -> Relay:
    """A data plane with chunks of an LMCache worker."""
    plane = new_plane().start()
    with worker(plane) as (client, segment):
        assert store_chunks(client, segment, prompt(CHUNKS), 0, "stores")
    return plane


@contextmanager
def worker(plane: Relay) -> Iterator[tuple[Client, Segment]]:
    with Client(url_of(plane)) as client, mapped(client.register()) as segment:
        client.answered_twice = True
        yield client, segment


def has_chunks(plane: Relay) -> bool:
    """Whether the chunks are there, each with the right bytes."""
    plane.describe()  # asserts that the audit finds nothing
    with worker(plane) as (client, segment):
        return check(client, segment, prompt(CHUNKS), 0, "reads")


def path_of(plane: Relay) -> Path:
    return FOLDER / (PREFIX + shm_name(plane.folder))


def inode_of(plane: Relay) -> int:
    return path_of(plane).stat().st_ino


def again(plane: Relay, **settings: str) -> None:
    plane.kill()
    plane.settings.update(settings)
    plane.start()


@contextmanager
def own_engine(plane: Relay) -> Iterator[None]:
    """An engine that is no gateway's. The block replaces the data plane, and the engine has all of its blocks again."""
    chain = make.keys(30, "own")
    with connect(plane) as client:
        assert store(client, chain) == 30
        yield
        wait_for(lambda: client.lookup(chain) == 30 and client.connected, "the engine is back")
        assert read(client, chain) == 30


def test_named_memory_of_a_gateway_survives_kills_at_its_address(plane: Relay) -> None:
    inode, status = inode_of(plane), path_of(plane).stat()
    assert status.st_size == 16 * make.MIB + 4096
    assert SEGMENT <= status.st_blocks * 512 < 2 * SEGMENT, "a range that is taken has its pages"
    with own_engine(plane), worker(plane) as (client, segment):
        assert client.lookup(prompt(CHUNKS), "held") == CHUNKS
        assert client.prepare_store(prompt(2, 1), "open")["slots"]
        for number in range(3):
            again(plane)
            assert inode_of(plane) == inode
            assert leased(plane.describe()) >= CHUNKS, "what was held is held still"
            assert check(client, segment, prompt(CHUNKS), 0, f"reads {number}")
            assert client.lookup(prompt(2, 1), f"looks {number}") == 0, "what was being written is never published"
            assert store_chunks(client, segment, prompt(1, 2 + number), 2 + number, f"stores {number}")
    assert plane.stop() == 0
    assert not path_of(plane).exists()


def new_settings(plane: Relay) -> None:
    plane.kill()
    plane.settings["dataplane__max_blocks"] = "999"


def stop(plane: Relay) -> None:
    assert plane.stop() == 0


def forget(plane: Relay) -> None:
    plane.kill()
    plane.forget()
    assert path_of(plane).exists()


@pytest.mark.parametrize("end", [new_settings, stop, forget])
def test_a_cold_start_has_a_new_file_under_the_same_name(plane: Relay, end: Callable[[Relay], None]) -> None:
    before = inode_of(plane)
    end(plane)
    plane.start()
    assert not has_chunks(plane)
    assert inode_of(plane) != before


def rival(plane: Relay, folder: Path) -> subprocess.CompletedProcess[str]:
    """Another data plane that is to have the same name."""
    folder.mkdir()
    named = {"lmcache_port": str(free_port()), "dataplane__lmcache_shm_name": shm_name(plane.folder)}
    return run("dataplane", env=Relay(folder, named).environ)


def test_a_living_owner_keeps_its_name_also_between_its_death_and_its_successor(plane: Relay, tmp_path: Path) -> None:
    before = inode_of(plane)
    failed = rival(plane, tmp_path / "one")
    assert failed.returncode == 2
    assert f"the LMCache gateway: {path_of(plane)} belongs to another data plane" in failed.stderr
    assert "dataplane.lmcache_shm_name" in failed.stderr
    plane.kill()
    assert rival(plane, tmp_path / "two").returncode == 2
    plane.start()
    assert inode_of(plane) == before


def test_without_the_gateway_its_memory_goes_and_everything_else_stays(plane: Relay) -> None:
    with own_engine(plane):
        again(plane, lmcache_port="0")
        assert not path_of(plane).exists()
        assert plane.wait_logged("memory.incomplete")[-1]["blocks"] == CHUNKS
        assert len(plane.describe().engines) == 1


def test_a_name_that_was_removed_between_two_data_planes_is_put_back(plane: Relay) -> None:
    before = inode_of(plane)
    plane.kill()
    path_of(plane).unlink()
    plane.start()
    assert has_chunks(plane)
    assert inode_of(plane) == before


def test_both_names_removed_cost_the_gateways_cache_alone(plane: Relay) -> None:
    with own_engine(plane):
        plane.kill()
        path_of(plane).unlink()
        path_of(plane).with_name(BACKUP_PREFIX + path_of(plane).name).unlink()
        plane.start()
        assert not has_chunks(plane)
        assert "were removed" in plane.wait_logged("lmcache.memory_lost")[-1]["reason"]
        assert path_of(plane).exists()


def test_another_size_and_name_count_from_the_next_cold_start_on(plane: Relay) -> None:
    again(plane, dataplane__lmcache_pool_bytes="4MiB", dataplane__lmcache_shm_name=shm_name("other"))
    assert has_chunks(plane)
    with Client(url_of(plane)) as client:
        registered = client.register()
        assert (registered["shm_name"], registered["pool_size"]) == (path_of(plane).name, 16 * make.MIB)
    assert plane.stop() == 0
    assert not path_of(plane).exists()


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        (
            {"dataplane__lmcache_pool_bytes": "512TiB"},
            2,
            "LMCache.* free, and dataplane.lmcache_pool_bytes says 512 TiB.*--shm-size",
        ),
        (
            {"pool_bytes": "512TiB"},
            2,
            r"pool_bytes: expected at most the memory of this machine or container, [\d.]+ .iB, got 512 TiB; "
            r"[\d.]+ .iB are free now",
        ),
        ({"control_url": "ipc:///proc/nowhere/control.sock"}, 1, ""),
    ],
)
def test_a_start_that_fails_leaves_no_name_and_says_why_in_one_line(
    new_plane: Callable[..., Relay], settings: dict[str, str], code: int, message: str
) -> None:
    plane = new_plane(**settings)
    failed = run("dataplane", env=plane.environ)
    assert failed.returncode == code
    assert re.search(message, failed.stderr)
    assert not path_of(plane).exists()


def test_by_default_the_file_is_as_large_as_the_pool_or_as_dev_shm_allows() -> None:
    settings = load(environ={"LARDER_POOL_BYTES": "64MiB"})
    assert named_segment._size(settings, 256 * make.MIB) == 64 * make.MIB
    assert named_segment._size(settings, 32 * make.MIB) == 32 * make.MIB
    with pytest.raises(CannotName, match="it needs 16 MiB"):
        named_segment._size(settings, 8 * make.MIB)
