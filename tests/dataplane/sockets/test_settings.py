"""Settings: the file, then the environment; a mistake is an error that names the setting."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from dataplane.base.settings import SettingsError, default_pool_bytes, to_environ
from dataplane.settings import DataPlaneSettings, load
from tests import forked


def read(environ: dict[str, str] | None = None, config: Path | None = None) -> DataPlaneSettings:
    return load(str(config) if config else None, {"LARDER_STATE_DIR": "/tmp/x", **(environ or {})})


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "larder.toml"
    path.write_text('pool_bytes = "2GiB"\n[dataplane]\nsegment_bytes = "128MiB"\nallowed_uids = [7]\n[app]\nany = 1\n')
    return path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No larder.toml lies around."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


def test_a_file_that_is_nested_too_deeply_is_not_toml(toml: Path) -> None:
    toml.write_text(f"pool_bytes = {'[' * 3000}{']' * 3000}")
    with pytest.raises(SettingsError, match=r"larder\.toml: not TOML: "):
        read(config=toml)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("control_url", "ipc://@larder"),  # an abstract socket has no mode, so any user can connect
        ("events_url", "ipc://relative.sock"),
        ("control_url", "tcp://::1:5557"),
        ("control_url", "tcp://0:5557"),
        ("events_url", "tcp://[fe80::1"),
        ("events_url", "http://127.0.0.1:1"),
    ],
)
def test_an_endpoint_that_is_none_or_that_others_reach_is_refused_by_its_name(name: str, url: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: "):
        load(environ={f"LARDER_{name.upper()}": url, "LARDER_STATE_DIR": "/nowhere"})


def test_paths_lie_under_the_state_directory_unless_set() -> None:
    common = read().common
    assert common.engine_socket == "/tmp/x/engine.sock"
    assert common.control_url == "ipc:///tmp/x/control.sock"
    assert common.events_url == "ipc:///tmp/x/events.sock"
    assert common.database_url == "sqlite+aiosqlite:////tmp/x/larder.db"
    assert read({"LARDER_ENGINE_SOCKET": "/run/e.sock"}).common.engine_socket == "/run/e.sock"


def test_the_engine_socket_is_in_the_runtime_directory_by_default() -> None:
    assert load(None, {"XDG_RUNTIME_DIR": "/run/user/7"}).common.engine_socket == "/run/user/7/larder/engine.sock"
    assert load(None, {}).common.engine_socket == str(Path("~/.local/state/larder/engine.sock").expanduser())
    assert read({"XDG_RUNTIME_DIR": "/run/user/7"}).common.engine_socket == "/tmp/x/engine.sock"


def test_the_environment_wins_over_the_file(toml: Path) -> None:
    settings = read(config=toml)
    assert (settings.pool_bytes, settings.table.segment_bytes) == (2 << 30, 128 << 20)
    environ = {"LARDER_POOL_BYTES": "3 GiB", "LARDER_DATAPLANE__SEGMENT_BYTES": "4MiB"}
    settings = read(environ, toml)
    assert (settings.pool_bytes, settings.table.segment_bytes) == (3 << 30, 4 << 20)
    assert settings.table.allowed_uids == [7]


def test_the_file_is_found_by_variable_and_in_the_working_directory(toml: Path) -> None:
    assert read({"LARDER_CONFIG": str(toml)}).pool_bytes == 2 << 30
    Path("larder.toml").write_text("pool_bytes = 8192\n")
    assert read().pool_bytes == 8192
    assert read({"LARDER_CONFIG": str(toml)}).pool_bytes == 2 << 30


def test_types_are_read_from_text() -> None:
    settings = read(
        {
            "LARDER_DATAPLANE__PREFAULT": "false",
            "LARDER_DATAPLANE__TICK_S": "0.5",
            "LARDER_DATAPLANE__MAX_CLIENTS": "7",
            "LARDER_DATAPLANE__ALLOWED_UIDS": "1000, 1001",
            "LARDER_POOL_BYTES": "1MiB",
        }
    )
    table = settings.table
    assert (table.prefault, table.tick_s, table.max_clients, table.allowed_uids) == (False, 0.5, 7, [1000, 1001])
    assert settings.max_blocks == 256
    assert read({"LARDER_DATAPLANE__ALLOWED_UIDS": ""}).table.allowed_uids == []


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("LARDER_POOL_BYTES", "much", "pool_bytes"),
        ("LARDER_POOL_BYTES", "-1", "pool_bytes"),
        ("LARDER_POOL_BYTES", "", "pool_bytes"),
        ("LARDER_POOL_BYTES", "4095", "pool_bytes"),
        ("LARDER_POOL_BYTE", "1GiB", "pool_byte"),
        ("LARDER_NO_SUCH", "1", "no_such"),
        ("LARDER_DATAPLANE__NO_SUCH", "1", "no_such"),
        ("LARDER_NOWHERE__NODE", "1", "LARDER_NOWHERE__NODE"),
        ("LARDER_DATAPLANE__NODE__NAME", "1", "LARDER_DATAPLANE__NODE__NAME"),
        ("LARDER_DATAPLANE", "x", "dataplane"),
        ("LARDER_HTTP_PORT", "web", "http_port"),
        ("LARDER_DATAPLANE__SEGMENT_BYTES", "1MiB", "dataplane.segment_bytes"),
        ("LARDER_DATAPLANE__SEGMENT_BYTES", "2GiB", "dataplane.segment_bytes"),
        ("LARDER_DATAPLANE__SEGMENT_BYTES", "2097153", "dataplane.segment_bytes"),
        ("LARDER_DATAPLANE__PIN_BUDGET_RATIO", "1", "dataplane.pin_budget_ratio"),
        ("LARDER_DATAPLANE__PIN_BUDGET_RATIO", "nan", "dataplane.pin_budget_ratio"),
        ("LARDER_DATAPLANE__HINT_MAX_S", "-1", "dataplane.hint_max_s"),
        ("LARDER_DATAPLANE__HINT_MAX_S", "nan", "dataplane.hint_max_s"),
        ("LARDER_DATAPLANE__TICK_S", "0", "dataplane.tick_s"),
        ("LARDER_DATAPLANE__TICK_S", "soon", "dataplane.tick_s"),
        ("LARDER_DATAPLANE__PREFAULT", "maybe", "dataplane.prefault"),
        ("LARDER_DATAPLANE__ALLOWED_UIDS", "root", "dataplane.allowed_uids"),
        ("LARDER_DATAPLANE__MAX_CLIENTS", "0", "dataplane.max_clients"),
        ("LARDER_DATAPLANE__NODE", "x" * 65, "dataplane.node"),
        ("LARDER_LMCACHE_PORT", "65536", "lmcache_port"),
        ("LARDER_LMCACHE_PORT", "-1", "lmcache_port"),
        ("LARDER_LMCACHE_PORT", "vllm", "lmcache_port"),
        ("LARDER_DATAPLANE__LMCACHE_HOST", "localhost", "dataplane.lmcache_host"),
        ("LARDER_DATAPLANE__LMCACHE_SHM_NAME", "a/b", "dataplane.lmcache_shm_name"),
        ("LARDER_DATAPLANE__LMCACHE_SHM_NAME", "x" * 65, "dataplane.lmcache_shm_name"),
        ("LARDER_DATAPLANE__LMCACHE_POOL_BYTES", "all", "dataplane.lmcache_pool_bytes"),
        ("LARDER_DATAPLANE__LMCACHE_POOL_BYTES", "1", "dataplane.lmcache_pool_bytes"),
        ("LARDER_DATAPLANE__LMCACHE_ALLOW_CLEAR", "perhaps", "dataplane.lmcache_allow_clear"),
        ("LARDER_CONTROL_URL", "tcp://0.0.0.0:5000", "control_url"),
        ("LARDER_EVENTS_URL", "/tmp/events", "events_url"),
        ("LARDER_CONFIG", "/no/such/file.toml", "/no/such/file.toml"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_it(name: str, value: str, named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read({name: value})
    variable = named.upper().replace(".", "__")  # what came from the environment is named as it was written there
    assert named in str(caught.value) or variable in str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("pool_bytes = \n", "not TOML"),
        ("pool_bytes = true\n", "pool_bytes"),
        ("pool = 1\n", "pool"),
        ("dataplane = 3\n", "dataplane"),
        ("[dataplane]\nsegment = 1\n", "segment"),
        ("[dataplane]\nsegment_byte = 1\n", "segment_byte .*: unknown setting; did you mean dataplane.segment_bytes?"),
        ("[dataplane]\nallowed_uids = ['root']\n", "allowed_uids"),
        ("[other]\nx = 1\n", "other"),
    ],
)
def test_an_error_of_a_wrong_file_names_the_location(toml: Path, text: str, named: str) -> None:
    toml.write_text(text)
    with pytest.raises(SettingsError, match=named) as caught:
        read(config=toml)
    assert "larder.toml" in str(caught.value)
    with pytest.raises(SettingsError):
        read({"LARDER_DATAPLANE__NODE": "x"}, toml)


def test_the_lmcache_gateway_is_on_by_default_but_not_requested() -> None:
    settings = read({"LARDER_POOL_BYTES": "5000001"})
    assert (settings.lmcache_url, settings.lmcache_requested) == ("tcp://127.0.0.1:5555", False)
    assert settings.lmcache_pool_bytes == 5000001 // 4096 * 4096
    assert settings.lmcache_allow_clear
    other = read({"LARDER_STATE_DIR": "/tmp/y"})
    assert settings.lmcache_shm_name == read().lmcache_shm_name != other.lmcache_shm_name


@pytest.mark.parametrize(
    ("environ", "expected", "url", "clear"),
    [
        ({"LARDER_LMCACHE_PORT": "0"}, False, "tcp://127.0.0.1:0", True),
        ({"LARDER_LMCACHE_PORT": "5555"}, True, "tcp://127.0.0.1:5555", True),
        ({"LARDER_DATAPLANE__LMCACHE_POOL_BYTES": "1GiB"}, True, "tcp://127.0.0.1:5555", True),
        ({"LARDER_DATAPLANE__LMCACHE_SHM_NAME": "mine"}, True, "tcp://127.0.0.1:5555", True),
        ({"LARDER_DATAPLANE__LMCACHE_HOST": "0.0.0.0"}, False, "tcp://0.0.0.0:5555", False),
        ({"LARDER_DATAPLANE__LMCACHE_HOST": "::1"}, False, "tcp://[::1]:5555", True),
        (
            {"LARDER_DATAPLANE__LMCACHE_HOST": "10.0.0.7", "LARDER_DATAPLANE__LMCACHE_ALLOW_CLEAR": "true"},
            False,
            "tcp://10.0.0.7:5555",
            True,
        ),
    ],
)
def test_settings_of_the_lmcache_gateway(environ: dict[str, str], expected: bool, url: str, clear: bool) -> None:
    settings = read(environ)
    assert (settings.lmcache_requested, settings.lmcache_url, settings.lmcache_allow_clear) == (expected, url, clear)


def test_variables_of_test_runs_are_not_settings() -> None:
    read({"LARDER_TEST_ANYTHING": "1", "LARDER_BENCH_ANYTHING": "1", "PATH": "/bin"})


def test_the_default_pool_is_a_gibibyte_and_at_most_half_of_free_memory() -> None:
    assert default_pool_bytes(64 << 30) == 1 << 30
    assert default_pool_bytes(1 << 30) == 1 << 29


def test_settings_survive_the_way_through_a_childs_environment() -> None:
    common = read({"LARDER_POOL_BYTES": "5MiB", "LARDER_HTTP_PORT": "0"}).common
    assert load(None, to_environ(common)).common == common


# ---- the process


def dataplane(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
    return forked.run("dataplane", *arguments, env={**clean, **environ})


def test_print_config_shows_everything_in_force(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    done = dataplane("--print-config", LARDER_STATE_DIR=str(folder), LARDER_POOL_BYTES="4GiB")
    assert done.returncode == 0
    shown = json.loads(done.stdout)
    assert shown["pool_bytes"] == 4 << 30
    assert shown["engine_socket"] == f"{folder}/engine.sock"
    assert shown["dataplane"]["reservation_ttl_s"] == 30.0
    assert not folder.exists(), "printing touches nothing"


def test_wrong_settings_end_the_process_with_one_sentence() -> None:
    done = dataplane(LARDER_STATE_DIR="/tmp/x", LARDER_POOL_BYTES="lots")
    assert done.returncode == 2
    assert "LARDER_POOL_BYTES" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_socket_path_that_is_too_long_ends_it_with_one_sentence(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    done = dataplane(LARDER_STATE_DIR=str(deep), LARDER_POOL_BYTES="1MiB")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert str(deep) in done.stderr


def test_an_endpoint_that_is_taken_ends_it_with_one_sentence(socket_dir: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        done = dataplane(LARDER_STATE_DIR=str(socket_dir), LARDER_POOL_BYTES="1MiB", LARDER_CONTROL_URL=url)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert url in done.stderr
