"""The named segment of real data planes that are killed, stopped, and started again with other settings."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dataplane.client import attach
from dataplane.memory.named import BACKUP_PREFIX, FOLDER, PREFIX, CannotName
from dataplane.recovery import named_segment
from dataplane.settings import load
from tests.dataplane import factories as make
from tests.dataplane.plane import contents, wait_for
from tests.forked import run
from tests.free_port import free_port
from tests.restart.support.gateway_plane import CHAIN, LEASED, NBYTES
from tests.restart.support.relay import Relay
from tests.run_marks import shm_name

SEGMENT = 2 * make.MIB


@dataclass
class Gateway(Relay):
    """One that says what its engine found, before `start` returns."""

    def report(self) -> list[dict[str, Any]]:
        path = self.folder / "said"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def start(self) -> Gateway:
        before = len(self.report())
        super().start()
        wait_for(lambda: len(self.report()) > before or not self.alive, "the engine says what it found")
        assert self.alive, self.log()
        return self


@pytest.fixture
def make_plane(socket_dir: Path) -> Iterator[Callable[..., Gateway]]:
    made: list[Gateway] = []
    names = []

    def new(**settings: str) -> Gateway:
        folder = socket_dir / str(len(made))
        folder.mkdir()
        name = shm_name(folder)
        names.append(name)
        settings = {"lmcache_port": str(free_port()), "dataplane__lmcache_shm_name": name, **settings}
        made.append(Gateway(folder, settings, module="tests.restart.support.gateway_plane"))
        return made[-1]

    yield new
    for each in made:
        each.end()
    for name in names:
        (FOLDER / (PREFIX + name)).unlink(missing_ok=True)
        (FOLDER / (BACKUP_PREFIX + PREFIX + name)).unlink(missing_ok=True)


@pytest.fixture
def plane(make_plane: Callable[..., Gateway]) -> Gateway:
    return make_plane().start()


def path_of(plane: Gateway) -> Path:
    return FOLDER / (PREFIX + plane.settings["dataplane__lmcache_shm_name"])


def report(plane: Gateway) -> dict[str, Any]:
    """What the last one wrote, before it served."""
    return plane.report()[-1]


def again(plane: Gateway, **settings: str) -> dict[str, Any]:
    """Kill it, start the next one, and hear what it found."""
    plane.kill()
    plane.settings.update(settings)
    plane.start()
    return report(plane)


def test_named_memory_of_a_gateway_survives_a_kill_at_its_address(plane: Gateway) -> None:
    first = report(plane)
    assert (first["named"], first["stored"], first["faults"]) == (path_of(plane).name, len(CHAIN), [])
    for _ in range(3):
        after = again(plane)
        assert after["adopted"]
        assert after["resumed"]
        assert after["faults"] == []
        assert after["inode"] == first["inode"] == path_of(plane).stat().st_ino
        assert (after["held"], after["found"], after["again"]) == (LEASED, len(CHAIN), len(CHAIN))
        assert after["stored"] == 5
        assert after["open"] == 0, "what was being written is never published"
    assert plane.stop() == 0
    assert not path_of(plane).exists()


def test_own_engines_and_a_gateways_outlive_a_kill_together(plane: Gateway) -> None:
    chain = make.keys(30, "own")
    client = attach(plane.socket, [make.space()], timeout_s=30)
    with client.reserve(chain, NBYTES) as reservation:
        for at in reservation.writable:
            reservation.view(at)[:] = contents(chain, NBYTES)[at]
        assert reservation.commit().blocks == len(chain)
    after = again(plane)
    assert after["again"] == len(CHAIN)
    wait_for(lambda: client.lookup(chain) == len(chain) and client.connected, "the engine is back")
    with client.acquire(chain) as lease:
        assert [bytes(lease.view(at)) for at in range(len(lease))] == contents(chain, NBYTES)
    client.close()


def test_a_name_of_dead_owners_is_taken_by_the_next_owner(plane: Gateway) -> None:
    first = report(plane)
    plane.kill()
    plane.forget()
    assert path_of(plane).exists()
    plane.start()
    after = report(plane)
    assert not after["adopted"]
    assert after["inode"] != first["inode"]
    assert after["inode"] == path_of(plane).stat().st_ino
    assert after["stored"] == len(CHAIN)


def rival(plane: Gateway, folder: Path) -> subprocess.CompletedProcess[str]:
    """Another data plane that is to have the same name."""
    folder.mkdir()
    settings = {**plane.settings, "lmcache_port": str(free_port())}
    return run("dataplane", env=Gateway(folder, settings).environ)


def test_a_living_owner_keeps_its_name_also_between_its_death_and_its_successor(plane: Gateway, tmp_path: Path) -> None:
    first = report(plane)
    failed = rival(plane, tmp_path / "one")
    assert failed.returncode == 2
    assert f"the LMCache gateway: {path_of(plane)} belongs to another data plane" in failed.stderr
    assert "dataplane.lmcache_shm_name" in failed.stderr
    plane.kill()
    assert rival(plane, tmp_path / "two").returncode == 2
    plane.start()
    assert report(plane)["inode"] == first["inode"]


def test_without_the_gateway_its_memory_goes_and_everything_else_stays(plane: Gateway) -> None:
    chain = make.keys(5, "own")
    client = attach(plane.socket, [make.space()], timeout_s=30)
    with client.reserve(chain, NBYTES) as reservation:
        for at in reservation.writable:
            reservation.view(at)[:] = contents(chain, NBYTES)[at]
        assert reservation.commit().blocks == len(chain)
    after = again(plane, lmcache_port="0")
    assert after == {"named": None, "engines": [], "faults": []}
    assert not path_of(plane).exists()
    assert plane.wait_logged("memory.incomplete")[-1]["blocks"] == len(CHAIN)
    wait_for(lambda: client.lookup(chain) == len(chain) and client.connected, "the engine is back")
    client.close()


def test_a_name_that_was_removed_between_two_data_planes_is_put_back(plane: Gateway) -> None:
    first = report(plane)
    plane.kill()
    path_of(plane).unlink()
    after = again(plane)
    assert (after["adopted"], after["found"], after["faults"]) == (True, len(CHAIN), [])
    assert after["inode"] == first["inode"] == path_of(plane).stat().st_ino


def test_both_names_removed_cost_the_gateways_cache_alone(plane: Gateway) -> None:
    chain = make.keys(5, "own")
    client = attach(plane.socket, [make.space()], timeout_s=30)
    with client.reserve(chain, NBYTES) as reservation:
        assert reservation.commit().blocks == len(chain)
    plane.kill()
    path_of(plane).unlink()
    path_of(plane).with_name(BACKUP_PREFIX + path_of(plane).name).unlink()
    after = again(plane)
    assert (after["adopted"], after["resumed"], after["found"]) == (False, False, 0)
    assert after["faults"] == []
    assert "were removed" in plane.wait_logged("lmcache.memory_lost")[-1]["reason"]
    assert path_of(plane).stat().st_ino == after["inode"]
    wait_for(lambda: client.lookup(chain) == len(chain) and client.connected, "the engine is back")
    client.close()


def test_a_cold_start_has_a_new_file_under_the_same_name(plane: Gateway) -> None:
    first = report(plane)
    after = again(plane, dataplane__max_blocks="999")
    assert not after["adopted"]
    assert after["inode"] != first["inode"]
    assert (after["found"], after["stored"]) == (0, len(CHAIN))
    assert path_of(plane).stat().st_ino == after["inode"]


def test_after_a_stop_in_good_order_the_next_start_is_cold(plane: Gateway) -> None:
    first = report(plane)
    assert plane.stop() == 0
    after = again(plane)
    assert (after["adopted"], after["found"], after["stored"]) == (False, 0, len(CHAIN))
    assert after["inode"] != first["inode"]
    assert path_of(plane).stat().st_ino == after["inode"]


def test_another_size_and_name_count_from_the_next_cold_start_on(plane: Gateway) -> None:
    path = path_of(plane)
    after = again(plane, dataplane__lmcache_pool_bytes="4MiB", dataplane__lmcache_shm_name=shm_name("other"))
    assert (after["named"], after["nbytes"], after["found"]) == (path.name, 16 * make.MIB, len(CHAIN))
    assert plane.stop() == 0
    assert not path.exists()


def test_a_size_beyond_dev_shm_is_logged_in_one_line(make_plane: Callable[..., Gateway]) -> None:
    plane = make_plane(dataplane__lmcache_pool_bytes="512TiB")
    failed = run("dataplane", env=plane.environ)
    assert failed.returncode == 2
    (line,) = [line for line in failed.stderr.splitlines() if "LMCache" in line]
    assert "free, and dataplane.lmcache_pool_bytes says 512 TiB" in line
    assert "--shm-size" in line
    assert not path_of(plane).exists()


def test_by_default_the_file_is_as_large_as_the_pool_or_as_dev_shm_allows(make_plane: Callable[..., Gateway]) -> None:
    small = make_plane().start()
    assert report(small)["nbytes"] == 16 * make.MIB
    settings = load(environ={"LARDER_POOL_BYTES": "64MiB"})
    assert named_segment._size(settings, 256 * make.MIB) == 64 * make.MIB
    assert named_segment._size(settings, 32 * make.MIB) == 32 * make.MIB
    with pytest.raises(CannotName, match="it needs 16 MiB"):
        named_segment._size(settings, 8 * make.MIB)


def test_a_pool_larger_than_the_machine_is_refused_with_the_size_that_fits(make_plane: Callable[..., Gateway]) -> None:
    failed = run("dataplane", env=make_plane(pool_bytes="512TiB").environ)
    assert failed.returncode == 2
    assert re.search(
        r"pool_bytes: expected at most the memory of this machine or container, [\d.]+ .iB, got 512 TiB; "
        r"[\d.]+ .iB are free now",
        failed.stderr,
    )


def test_a_start_that_fails_later_leaves_no_name(make_plane: Callable[..., Gateway]) -> None:
    plane = make_plane(control_url="ipc:///proc/nowhere/control.sock")
    failed = run("dataplane", env=plane.environ)
    assert failed.returncode == 1
    assert not path_of(plane).exists()


def test_a_taken_range_has_its_pages_and_a_stopped_node_leaves_nothing(plane: Gateway) -> None:
    status = path_of(plane).stat()
    assert status.st_size == 16 * make.MIB + 4096
    assert SEGMENT <= status.st_blocks * 512 < 2 * SEGMENT
    assert plane.stop() == 0
    assert not path_of(plane).exists()
