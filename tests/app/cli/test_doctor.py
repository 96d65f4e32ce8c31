"""`larder doctor` says what is wrong with a machine; and nothing ever prints a password."""

import contextlib
import fcntl
import json
import os
import pwd
import resource
import socket
import sqlite3
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app.cli import larder
from app.cli.commands.machine.doctor import doctor
from app.cli.commands.machine.up import up
from app.cli.support.machine import checkup, gpus
from app.descriptions import descriptions
from app.settings import AppSettings, Settings, without_secrets
from dataplane.base.redaction import redacted, without_password
from dataplane.base.settings import Common, with_defaults
from dataplane.protocol.spaces import LMCACHE
from docs.settings_table import TABLES
from tests.app.doctor import examined, examined_with_processes
from tests.dataplane.named_files import created


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    monkeypatch.setenv("LARDER_STATE_DIR", str(state))
    monkeypatch.setenv("LARDER_HTTP_PORT", "0")
    monkeypatch.setenv("LARDER_POOL_BYTES", "4MiB")
    return state


def test_a_machine_that_is_in_order_passes(folder: Path) -> None:
    code, found = examined_with_processes()
    assert (code, {n for n, c in found.items() if c["state"] == "failure"}) == (0, set())
    assert set(found) >= {
        "settings", "kernel", "versions", "open files", "memory", "/dev/shm", "huge pages", "locked memory", "port",
        "state directory", "clock", "GPU", "database",
    }  # fmt: skip
    assert list(folder.iterdir()) == [], "it changes nothing"


def test_a_missing_or_occupied_name_of_the_gateways_memory_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARDER_LMCACHE_PORT", "5555")
    assert "LMCache memory" not in examined()[1]
    shared = folder.parent / "shm"
    shared.mkdir()
    monkeypatch.setattr(checkup, "SHARED_MEMORY", shared)
    monkeypatch.setenv("LARDER_DATAPLANE__LMCACHE_SHM_NAME", "kv")
    path, backup = shared / "lmcache_l1_pool_kv", shared / ".larder-lmcache_l1_pool_kv"
    backup.touch()
    code, found = examined()
    assert (code, found["LMCache memory"]["state"]) == (1, "failure")
    assert f"{path} was removed" in found["LMCache memory"]["message"]
    path.touch()
    assert f"{path} is another file" in examined()[1]["LMCache memory"]["message"]
    path.unlink()
    path.hardlink_to(backup)
    assert "LMCache memory" not in examined()[1]
    path.unlink()
    backup.unlink()
    assert "LMCache memory" not in examined()[1], "nothing runs"
    with (folder / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert f"{path} does not exist" in examined()[1]["LMCache memory"]["message"]


def test_memory_that_dead_data_planes_left_is_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = folder.parent / "shm"
    shared.mkdir()
    monkeypatch.setattr(checkup, "SHARED_MEMORY", shared)
    living = created("living", 1 << 20, folder=shared)
    assert "memory left behind" not in examined()[1]
    dead = created("dead; halt", 1 << 20, folder=shared)
    dead.close()
    assert "memory left behind" not in examined()[1], "the next data plane may be starting"
    os.utime(dead.paths[0], (0, 0))
    found = examined()[1]["memory left behind"]
    backup, path = sorted(each for each in shared.iterdir() if "dead" in each.name)
    assert (found["state"], found["fix"]) == ("warning", f"rm '{backup}' '{path}'")
    assert path.exists(), "it changes nothing"
    living.remove()
    living.close()


def test_a_user_is_warned_if_logout_removes_the_gateways_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd, logind, linger = folder.parent / "run", folder.parent / "logind.conf", folder.parent / "linger"
    (systemd / "system").mkdir(parents=True)
    linger.mkdir()
    for name, path in (("SYSTEMD", systemd), ("LOGIND", logind), ("LINGER", linger)):
        monkeypatch.setattr(checkup, name, path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("ada", "", 1000, 1000, "", "", "")))

    def warned() -> bool:
        found = checkup.checks(_settings(folder), {"lmcache_shm_name": "x"}, 0, runs=False)
        return any(each.name == "LMCache memory" and "RemoveIPC" in each.message for each in found)

    assert warned()
    logind.write_text("[Login]\nRemoveIPC=no\n")
    assert not warned()
    logind.write_text("[Login]\n#RemoveIPC=no\n")
    assert warned()
    (linger / "ada").touch()
    assert not warned()
    (linger / "ada").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 999)
    assert not warned(), "a system user"


def _settings(folder: Path) -> Settings:
    return Settings(common=Common(state_dir=str(folder)), app=AppSettings())


def test_the_table_names_failures_and_their_repair(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARDER_POOL_BYTES", "1000TiB")
    result = CliRunner().invoke(doctor, catch_exceptions=False)
    assert result.exit_code == 1
    assert "FAILURE  memory " in result.output
    assert "LARDER_POOL_BYTES=" in " ".join(result.output.split())
    assert [line for line in result.output.splitlines() if len(line) > 80 and str(folder) not in line] == []


def test_an_invalid_setting_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARDER_DATAPLANE__SEGMENT_BYTES", "5")
    code, found = examined()
    assert code == 1
    assert "segment_bytes" in found["settings"]["message"]
    monkeypatch.setenv("LARDER_HTTP_PORT", "many")
    code, found = examined()
    assert code == 1
    assert list(found) == ["settings"]


def test_a_server_that_is_not_this_machines_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARDER_URL", "https://larder.example:8470/")
    message = "other commands ask https://larder.example:8470, which is not checked here: larder status"
    assert examined()[1]["server"]["message"] == message
    monkeypatch.setenv("LARDER_URL", "larder.example")
    assert examined()[1]["server"]["state"] == "failure"


def test_a_port_that_another_program_has_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # bound, but not listening, so that doctor does not wait for an answer
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("LARDER_HTTP_PORT", str(taken.getsockname()[1]))
        code, found = examined()
        assert (code, found["port"]["state"]) == (1, "failure")
        lock = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, found = examined()
        os.close(lock)
        assert (code, found["port"]["state"]) == (0, "ok"), "a Larder runs here and has it"


def test_a_state_directory_that_others_can_reach_fails(folder: Path) -> None:
    folder.chmod(0o755)
    code, found = examined()
    assert code == 1
    assert found["state directory"]["fix"] == f"chmod 700 {folder}"


def test_a_state_directory_below_a_file_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("LARDER_STATE_DIR", str(folder / "file" / "state"))
    code, found = examined()
    assert (code, found["state directory"]["state"]) == (1, "failure")


def test_shared_memory_that_is_too_small_for_lmcache_clients_is_reported() -> None:
    size = os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    none, little = (checkup._shared_memory(each, configured=False) for each in (0, min(size, 1 << 20)))
    assert none.state == little.state
    found = checkup._shared_memory(1 << 50, configured=False)
    assert (found.state, "--shm-size=1048576g" in found.fix) == ("warning", True)
    assert "LARDER_LMCACHE_PORT=0" in found.fix
    assert checkup._shared_memory(1 << 50, configured=True).state == "failure"


def test_missing_huge_or_locked_pages_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = checkup._huge_pages(1 << 50, requested=True, runs=False)
    assert (found.state, "vm.nr_hugepages=" in found.fix) == ("failure", True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    assert checkup._locked_memory(1 << 30, requested=True).state == "failure"
    assert checkup._files(1024).state == "ok"
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert checkup._files(1024).state == "warning"


def test_a_gpu_that_torch_cannot_use_is_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(metadata, "version", lambda _: "2.13.0+cpu")
    found = checkup._gpu()
    assert (found.state, "H200" in found.message) == ("warning", True)
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML'; exit 9\n")
    assert checkup._gpu().state == "warning"
    monkeypatch.setenv("PATH", "/nowhere")
    assert checkup._gpu().state == "ok"


def test_missing_gpu_memory_for_gpu_copies_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.gpu_copies(0) == []
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '143771, 100000'\necho '81559, 81000'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    for requested, state, expected in (
        (8 << 30, "ok", "up to 8 GiB of each GPU once an engine asks; at least 79.1 GiB are free now"),
        (80 << 30, "warning", "80 GiB are more than GPU 1 has (79.6 GiB)"),
        ((79 << 30) + (512 << 20), "warning", "GPU 1 has 79.1 GiB free now, and GPU copies may take 79.5 GiB of it"),
        (100 << 30, "warning", "100 GiB are more than GPU 1 has (79.6 GiB)"),
    ):
        (found,) = gpus.gpu_copies(requested)
        assert (found.state, expected in found.message) == (state, True), found
    for name in ("GPU", "CUDA"):
        (found,) = gpus.gpu_copies(8 << 30, [checkup.CheckResult(name, "warning", "of no use", "mend it")])
        assert (found.state, found.message, found.fix) == (
            "warning",
            f"pins of the tier gpu have no GPU copies: see {name}",
            "mend it",
        )
    for text in ("echo 'Failed to initialize NVML'; exit 9", "echo '[N/A], 1'", "echo 5", "exit 0"):
        program.write_text(f"#!/bin/sh\n{text}\n")
        assert [found.state for found in gpus.gpu_copies(8 << 30)] == ["warning"], text
    monkeypatch.setenv("PATH", "/nowhere")
    (found,) = gpus.gpu_copies(8 << 30)
    assert (found.state, "no GPU was found" in found.message) == ("warning", True)


def test_the_memory_for_gpu_copies_is_checked_where_it_is_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "GPU copies" not in examined()[1]
    monkeypatch.setenv("LARDER_DATAPLANE__GPU_POOL_BYTES", "1PiB")
    assert examined()[1]["GPU copies"]["state"] == "warning"


def test_a_database_that_is_away_or_old_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "larder.db").touch()
    code, found = examined()
    assert code == 1
    assert "larder db upgrade" in found["database"]["message"]
    with contextlib.closing(sqlite3.connect(folder / "larder.db")) as newer:
        newer.executescript(
            "CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('9999')"
        )
    code, found = examined()
    assert (code, "a newer Larder wrote it" in found["database"]["message"]) == (1, True)
    assert found["database"]["fix"] == "start that release, or restore a backup that this one made"
    monkeypatch.setenv("LARDER_DATABASE_URL", "postgresql://user:sesame@127.0.0.1:1/larder")
    code, found = examined()
    assert code == 1
    assert "sesame" not in json.dumps(found)
    assert "user:***@127.0.0.1:1/larder" in found["database"]["message"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:sesame@host:5432/larder", "postgresql://user:***@host:5432/larder"),
        ("postgresql://user:se@s:ame@host/larder", "postgresql://user:***@host/larder"),
        ("postgresql://user@host/larder", "postgresql://user@host/larder"),
        (
            "postgresql:///larder?host=/run/pg&password=sesame&sslpassword=sesame",
            "postgresql:///larder?host=/run/pg&password=***",
        ),
        ("postgresql://h/d?user=u&password=se&same", "postgresql://h/d?user=u&password=***"),
        ("postgresql://h/d?user=u&password=se@same", "postgresql://h/d?user=u&password=***"),
        ("postgresql://h/d?user=u&%70assword=sesame", "postgresql://h/d?user=u&%70assword=***"),
        ("postgresql://h/d#password=sesame", "postgresql://h/d#password=***"),
        ("mysql://h/d?pwd=sesame", "mysql://h/d?pwd=***"),
        ("postgresql://user:a?token=sesame@host/d", "postgresql://user:***"),
        ("postgresql://user:se/sa?m#e@host/d", "postgresql://user:***@host/d"),
        ("postgresql://user:sesame/larder", "postgresql://user:***"),
        ("postgresql://a:1,u:sesame@b:2/larder", "postgresql://a:***@b:2/larder"),
        ("https://sesame@host:3128", "https://***@host:3128"),
        ("tcp://[::1]:8471", "tcp://[::1]:8471"),
        ("sqlite+aiosqlite:////var/lib/larder.db", "sqlite+aiosqlite:////var/lib/larder.db"),
        ("sesame", "***"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
    if "://" in url:
        assert redacted(f"cannot use {url}; see {url!r}") == f"cannot use {shown}; see {shown!r}"


def test_settings_are_shown_without_secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = with_defaults(Common(database_url="postgresql://u:sesame@h/d"), {})
    shown = without_secrets(Settings(common=common, app=AppSettings(admin_token="sesame" * 8)))
    assert "sesame" not in repr(shown)
    assert without_secrets(Settings(common=common, app=AppSettings())).app.admin_token == "", "none is set"
    monkeypatch.setenv("LARDER_DATABASE_URL", "postgresql://u:sesame@h/d")
    monkeypatch.setenv("LARDER_APP__ADMIN_TOKEN", "sesame" * 8)
    plane = CliRunner().invoke(up, ["--print-config"])
    data = subprocess.run(
        [sys.executable, "-m", "dataplane", "--print-config"], capture_output=True, text=True, check=True
    )
    for output in (plane.output, data.stdout + data.stderr):
        assert "database_url" in output
        assert "sesame" not in output


def test_every_setting_has_a_text() -> None:
    for _, _, kind in TABLES:
        assert set(descriptions(kind)) == set(kind.__struct_fields__), kind


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:///{folder}/x.db?foo=1", "expected no parameters but none, got foo"),
        ("postgresql://u:sesame@127.0.0.1:1/x?foo=1", "got foo"),
        ("postgresql://u:sesame@127.0.0.1:1/x?sslmode=require", "write ssl=require"),
        ("postgresql://u:sesame@127.0.0.1:1/x?ssl=perhaps", "expected ssl to be one of"),
        ("postgresql://u:sesame@127.0.0.1:99999/x", "expected a port from 1 to 65535, got 99999"),
        ("sqlite://user@host/x", "got a host"),
        ("sqlite://", "expected the path of a file"),
        ("sqlite:///:memory:", "expected the path of a file"),
        ("postgresql://u:sesame@/x?host=/nowhere", "nothing listens at its address"),
    ],
)
def test_an_invalid_database_url_is_reported_in_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, url: str, message: str
) -> None:
    monkeypatch.setenv("LARDER_DATABASE_URL", url.format(folder=folder))
    code, found = examined()
    assert code == 1
    assert message in found["database"]["message"]
    checked = CliRunner().invoke(larder, ["db", "check"])
    assert checked.exit_code == (1 if "host=/nowhere" in url else 2)
    assert checked.output.startswith("Error: ")
    assert (checked.output.count("\n"), message in checked.output) == (1, True)
    assert "sesame" not in checked.output + json.dumps(found)


def test_the_settings_of_the_running_server_are_distinguished_from_those_of_this_shell(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, found = examined()
    assert found["settings"]["message"].startswith("in this shell: ")
    pool = {"capacity_bytes": 64 << 20, "huge_pages": False, "locked": True}
    node = {"name": "gpu-a1", "public_key": "", "state": "in_sync", "stats": {"pool": pool}}
    other = {**node, "name": "gpu-b1", "public_key": "k"}
    answers: dict[str, dict[str, Any]] = {
        "/api/v1/nodes": {"items": [other, node]},
        "/api/v1/overview": {"nodes": [], "pins": []},
    }
    monkeypatch.setenv("LARDER_HTTP_PORT", "9")
    monkeypatch.setattr(checkup, "runs_here", lambda folder: True)
    monkeypatch.setattr("app.cli.commands.machine.doctor.call", lambda url, method, path, **options: answers[path])
    _, found = examined()
    message = found["settings"]["message"]
    assert "on the running server at http" in message
    assert "node gpu-a1: pool 64 MiB, locked memory" in message
    assert "this shell has a pool of 4 MiB" in message
    assert "the pool takes 64 MiB" in found["memory"]["message"]
    answers["/api/v1/overview"] = {
        "nodes": [{**other, "state": "lost", "stats": None, "seen_at": time.time() - 600}],
        "findings": [
            {
                "code": "node_lost", "severity": "critical", "what": "Node gpu-b1 is lost", "detail": "it is silent",
                "subject": {"kind": "node", "name": "gpu-b1", "node": "gpu-b1", "tenant": ""},
                "since": None, "ended_at": None, "likely_change": None, "to_do": "start it",
                "runbook": "/docs/operate/runbook.md#b",
            }
        ],
    }  # fmt: skip
    code, found = examined()
    assert (code, found["node"]["state"]) == (1, "failure")
    assert found["node"]["message"] == "Node gpu-b1 is lost: it is silent"
    assert found["node"]["fix"] == "larder why gpu-b1, then start it; see docs/operate/runbook.md#b"
    (folder / "manager.key").touch()
    assert "A lost management plane's key" in examined()[1]["node"]["fix"]
    (folder / "manager.key").unlink()
    spaces = [
        {"model": model, "gateway": gateway} for model, gateway in (("m", ""), ("org/m", LMCACHE), ("/a b", LMCACHE))
    ]
    answers["/api/v1/nodes"] = {"items": [{**node, "stats": {"pool": pool, "spaces": spaces}}]}
    weights = [
        each
        for each in json.loads(CliRunner().invoke(doctor, ["--json"]).output)["checks"]
        if each["name"] == "weights"
    ]
    assert [(each["state"], each["message"].split(" of ")[1]) for each in weights] == [
        ("warning", "/a b an engine has loaded"),
        ("ok", "org/m an engine has loaded"),
    ]
    assert "larder invalidate --model '/a b', and only then" in weights[0]["fix"]
    answers["/api/v1/nodes"] = {"items": [other]}
    _, found = examined()
    assert "in this shell: " in found["settings"]["message"]
    assert "was not reached" in found["settings"]["message"]


def test_layouts_that_differ_under_one_model_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [
        {"model": model, "world_size": 1, "layout": "lmcache:2x2x256x8", "dtype": dtype}
        for model, dtype in (
            ("llama", "float16"),
            ("llama", "float16"),
            ("llama", "float8_e4m3fn"),
            ("other", "float8"),
        )
    ]
    stats = {
        "pool": {"blocks": 1, "ready_bytes": 1, "capacity_bytes": 64 << 20},
        "tiers": [], "gateway": {"instances": workers},
    }  # fmt: skip
    node = {"name": "gpu-a1", "public_key": "", "state": "in_sync", "stats": stats}
    answers: dict[str, dict[str, Any]] = {
        "/api/v1/nodes": {"items": [node]},
        "/api/v1/overview": {"nodes": [node], "pins": []},
    }
    monkeypatch.setenv("LARDER_HTTP_PORT", "9")
    monkeypatch.setattr(checkup, "runs_here", lambda folder: True)
    monkeypatch.setattr("app.cli.commands.machine.doctor.call", lambda url, method, path, **options: answers[path])
    _, found = examined()
    assert found["layouts"]["state"] == "warning"
    assert "LMCache workers of llama (world size 1) on gpu-a1" in found["layouts"]["message"]
    assert "lmcache:2x2x256x8 float16, lmcache:2x2x256x8 float8_e4m3fn" in found["layouts"]["message"]
    workers.pop(2)
    assert "layouts" not in examined()[1]
