"""A restart with settings that cannot work fails, says why, and leaves the cache where it is."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from dataplane.client import Client
from dataplane.settings import DataPlaneTable
from tests.e2e.larder import keys, store, until
from tests.e2e.test_restart import Restarted, larder, read

__all__ = ["larder"]

BLOCKS = keys("kept", 8)
MISSING = "/no/such/file"
WRONG: dict[str, Any] = {
    "node": ["a"],
    "labels": {"": ""},
    "join_token_file": MISSING,
    "advertise_control_url": "nonsense",
    "advertise_events_url": "nonsense",
    "segment_bytes": 4096,
    "max_blocks": 2,
    "reservation_ttl_s": 0,
    "pin_budget_ratio": 2,
    "hint_max_s": -1,
    "block_events_per_s": -1,
    "max_clients": 0,
    "allowed_uids": ["x"],
    "prefault": "perhaps",
    "prefault_ahead_bytes": -1,
    "huge_pages": True,
    "membarrier": "perhaps",
    "mlock": "perhaps",
    "lmcache_host": "nonsense",
    "lmcache_shm_name": "a/b",
    "lmcache_pool_bytes": -1,
    "lmcache_allow_clear": "perhaps",
    "lmcache_idle_timeout_s": 0,
    "lmcache_first_ping_timeout_s": 0,
    "gpu_pool_bytes": 5,
    "disk_tier_directories": ["relative"],
    "disk_tier_bytes": -1,
    "disk_tier_spill": "sometimes",
    "tier_directory_blocks": 1,
    "tier_cluster": 5,
    "tier_secrets": ["no secret"],
    "kv_events_replay_url": 5,
    "kv_events_format": "xml",
    "kv_events_topics": 5,
    "kv_events_medium": 5,
    "kv_events_token_ids": "perhaps",
    "kv_events_remote_token_ids": "perhaps",
    "kv_events_block_tokens": -1,
    "kv_events_ranks": 0,
    "kv_events_buffer_steps": -1,
    "kv_events_hwm": -1,
    "external_holder": "perhaps",
    "log_level": "loud",
    "log_format": "xml",
    "tick_s": 0,
    "stats_interval_s": 0,
    "ipc_interval_s": -1,
}
"""For each setting of the data plane a value that cannot work."""
OF_THE_ENVIRONMENT = {"keep_memory_s"}
"""Settings that the environment of these tests has, and the file does not override."""


def write(larder: Restarted, **settings: Any) -> None:
    """Write shared settings, and those of the data plane with `dataplane__` before their names, as TOML."""

    def toml(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items()) + "}"
        return json.dumps(value)

    own = {name.removeprefix("dataplane__"): value for name, value in settings.items() if "__" in name}
    lines = [f"{name} = {toml(value)}" for name, value in settings.items() if "__" not in name]
    lines += ["[dataplane]", *(f"{name} = {toml(value)}" for name, value in own.items())]
    larder.configure("\n".join(lines))


def check_cached(larder: Restarted, client: Client, name: str) -> None:
    """Check that every block is there, and that stores are served."""
    until(lambda: store(client, keys(f"{name}/after", 1)) == 1, f"stores are served after {name}")
    assert read(client, BLOCKS) == len(BLOCKS), name
    until(larder.ready, f"ready after {name}")


def refuse(larder: Restarted, client: Client, name: str, **settings: Any) -> str:
    """Restart with settings that cannot work; return what the command says."""
    write(larder, **settings)
    restarted = larder.cli("restart")
    assert restarted.returncode == 1, (name, restarted.stdout, restarted.stderr)
    assert "Traceback" not in restarted.stderr, name
    check_cached(larder, client, name)
    return restarted.stderr


@pytest.fixture
def client(larder: Restarted) -> Iterator[Client]:
    with larder.engine() as client:
        assert store(client, BLOCKS) == len(BLOCKS)
        yield client


@pytest.mark.full
def test_settings_that_fail_only_in_the_new_process_bring_the_old_one_back_with_its_memory(
    larder: Restarted, client: Client
) -> None:
    pid = larder.pid()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        output = refuse(larder, client, "kv_events_url", kv_events_url=url)
    assert "the new data plane did not start: " in output
    assert "Address already in use" in output
    assert "One with the old settings serves again" in output
    assert larder.pid() != pid
    assert larder.start_of_cache()["kind"] == "warm"
    write(larder)
    assert larder.cli("restart").returncode == 0
    check_cached(larder, client, "a restart that works")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_no_setting_of_the_data_plane_loses_the_cache(larder: Restarted, client: Client) -> None:
    assert set(WRONG) | OF_THE_ENVIRONMENT == set(msgspec.structs.asdict(DataPlaneTable())), (
        "there is a value for every setting"
    )
    for name, value in WRONG.items():
        output = refuse(larder, client, name, **{f"dataplane__{name}": value})
        print(f"{name}: {output.strip()}")
        assert name in output
