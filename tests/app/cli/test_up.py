"""`larder up` and the command line as people use them: real processes, the real data plane."""

import asyncio
import contextlib
import errno
import json
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app import __version__
from app.cli.commands.machine import up as up_command
from app.openapi import document
from app.settings import load
from dataplane.client import Code, Space, attach
from tests.app.callers import ADMIN
from tests.app.up import Up, until
from tests.environ import clean_environ
from tests.forked import Forked
from tests.free_port import free_port
from tests.golden_file import Golden

LARDER = (sys.executable, "-m", "app")
PORT_TAKEN = "Error: cannot listen on 127.0.0.1:{taken}: Address already in use; set LARDER_HTTP_PORT to another port"


def is_running(pid: int) -> bool:
    """A zombie that was not collected yet does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def up(socket_dir: Path) -> Iterator[Up]:
    with Up(socket_dir) as running:
        running.until_ready()
        yield running


def test_settings_of_the_command_line_are_in_force_and_survive_the_data_plane(up: Up) -> None:
    assert up.cli("quota", "set", "acme", "8MiB", "--note", "trial", "--wait", "30s").stdout == (
        "acme: limit 8 MiB, floor -, weight 1, evict_self, enforce; applied\n"
    )
    pin = up.cli("pin", "set", "p", "--model", "m", "--tokens", "1 2 3 4", "--chunk-tokens", "2", "--ttl", "1h")
    assert pin.stdout.startswith("p: 2 chunks of m for _default"), pin.stderr
    first = up.node()
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: up.node()["pid"] != first["pid"] and up.node()["state"] == "in_sync", 60)
    assert up.node()["observed"]["quotas"]["generation"] == 1
    recent = {event["name"]: event["fields"] for event in up.get("/api/v1/overview").json()["recent"]}
    assert recent["dataplane.exited"] == {"code": -9, "restart_in_s": 0.0}
    assert recent["dataplane.started"] == {"pid": up.node()["pid"]}
    status = json.loads(up.cli("status", "--json").stdout)
    limits = {tenant["tenant"]: tenant["limit_bytes"] for tenant in status["tenants"]}
    assert limits == {"acme": 8 << 20, "_default": None}
    assert "acme" in up.cli("status").stdout
    missing = up.cli("quota", "get", "nobody")
    assert (missing.returncode, missing.stderr) == (4, "Error: there is no quota for tenant 'nobody'\n")
    assert up.cli("pin", "set", "p", "--model", "m").returncode == 2
    assert up.cli("quota", "delete", "acme").returncode == 0
    second = up.cli("up")
    assert second.returncode == 1
    assert second.stderr.startswith("Error: another Larder runs with the state directory")
    stopped_with_an_open_stream(up)


def stopped_with_an_open_stream(up: Up) -> None:
    """SIGTERM notifies the data plane before it ends it, and the exit code is 0."""
    pid = up.node()["pid"]
    with httpx.stream("GET", up.url + "/api/v1/events", trust_env=False, verify=False, timeout=60) as stream:
        next(stream.iter_bytes())
        up.process.terminate()
        errors = up.end()
    assert up.process.returncode == 0, errors
    assert not is_running(pid)
    assert "Traceback" not in errors
    stopped = [line for line in errors.splitlines() if '"dataplane.stopped"' in line]
    assert [json.loads(line)["code"] for line in stopped] == [0]
    assert "dataplane.killed" not in errors


def test_a_start_ends_with_a_line_with_all_locations_and_the_data_plane_inherits_no_secret(socket_dir: Path) -> None:
    database = f"sqlite:///{socket_dir / 'other.db'}"
    ours, terminal = os.openpty()
    gateway = free_port()
    up = Up(
        socket_dir,
        terminal,
        LARDER_LMCACHE_PORT=str(gateway),
        LARDER_APP__LOG_FORMAT="json",
        LARDER_APP__PUSH_TIMEOUT_S="60",
        LARDER_DATABASE_URL=database,
        LARDER_APP__ADMIN_TOKEN=ADMIN,
        LARDER_SETUP_TOKEN="hunter2",
        LARDER_TOKEN="hunter2",
        PGPASSWORD="hunter2",
        HF_TOKEN="hunter2",
        MYSQL_PWD="hunter2",
        GH_PAT="hunter2",
        SENTRY_DSN="https://hunter2@sentry.invalid/1",
        SLACK_WEBHOOK="https://hooks.invalid/hunter2",
        DATABASE_URL="postgresql://u:hunter2@db.invalid/x",
        HTTPS_PROXY="http://u:hunter2@proxy.invalid:3128",
        PIP_INDEX_URL="https://u:hunter2@pypi.invalid/simple",
        OTEL_EXPORTER_OTLP_HEADERS="x-key=of-the-collector",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://u:hunter2@otel.invalid",
        OTEL_SERVICE_NAME="cache",
        CUDA_VISIBLE_DEVICES="0",
        TIER_S3_SECRET="of-a-tier",
        LARDER_DATAPLANE__NODE="one",
    )
    os.close(terminal)
    shown = b""
    try:
        while not shown.endswith(b"\n"):
            assert select.select([ours], [], [], 90)[0], "no line came"
            shown += os.read(ours, 4096)
        http = httpx.Client(base_url=up.url, headers={"Authorization": f"Bearer {ADMIN}"}, trust_env=False, timeout=60)
        with http:
            assert http.get("/readyz").status_code == 200
            (node,) = http.get("/api/v1/nodes").json()["items"]
            assert node["state"] == "in_sync"
        children = Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children").read_text().split()
        environs = [Path(f"/proc/{child}/environ").read_bytes() for child in children]
        assert environs
        for environ in environs:
            names = {line.partition(b"=")[0] for line in environ.split(b"\0")}
            assert {b"LARDER_STATE_DIR", b"LARDER_DATAPLANE__NODE", b"PATH"} <= names
            assert {b"OTEL_SERVICE_NAME", b"CUDA_VISIBLE_DEVICES"} <= names
            assert b"OTEL_EXPORTER_OTLP_HEADERS" in names  # it sends spans to the same collector
            assert b"TIER_S3_SECRET" in names  # records of tiers may name it
            assert b"LARDER_DATABASE_URL" not in names
            assert not any(name.startswith((b"LARDER_APP__", b"PG")) for name in names)
            assert b"hunter2" not in environ
            assert b"other.db" not in environ
    finally:
        log = up.end()
        os.close(ours)
    fields = {"url": up.url, "engine_socket": f"{socket_dir}/engine.sock", "gateway": f"tcp://127.0.0.1:{gateway}"}
    api, engines, clients = fields.values()
    line = f"dashboard and API {api}, engine socket {engines}, LMCache gateway {clients}"
    assert shown.decode().rstrip() == f"Larder {__version__} serves: {line}"
    (event,) = [json.loads(each) for each in log.splitlines() if '"larder.serving"' in each]
    assert {name: event[name] for name in fields} == fields


def test_after_kill_9_the_data_plane_serves_on_and_the_next_larder_adopts_it_and_pushes_the_last_commit(
    up: Up, socket_dir: Path
) -> None:
    pid = up.node()["pid"]
    with attach(str(socket_dir / "engine.sock"), [Space(model="m")], timeout_s=60) as client:
        chain = [bytes([number]) * 32 for number in range(4)]
        with client.reserve(chain, 4096) as reservation:
            assert reservation.commit().blocks == 4
        # Stopped, so that the answer to the PUT is all that the first process ever does about it.
        os.kill(pid, signal.SIGSTOP)
        quota = up.url + "/api/v1/quotas/acme"
        put = httpx.put(quota, json={"limit_bytes": 5}, trust_env=False, verify=False, timeout=60)
        assert put.json()["status"]["applied"] is False
        up.process.kill()
        up.process.wait(60)
        os.kill(pid, signal.SIGCONT)
        assert is_running(pid)
        with client.reserve([b"x" * 32], 4096) as reservation:
            assert reservation.commit().blocks == 1, "it is served without a management plane"
        with Up(socket_dir) as second:
            second.until_ready()
            assert second.node()["pid"] == pid
            assert second.get("/api/v1/quotas/acme").json()["status"]["applied"] is True
            assert client.reserve([b"y" * 32], 4096, tenant="acme").refused == {Code.OVER_LIMIT: 1}
            assert client.lookup(chain) == 4
            os.kill(pid, signal.SIGKILL)
            until(lambda: second.node()["pid"] != pid and second.node()["state"] == "in_sync", 60)
            assert client.lookup(chain) == 4, "who met it holds its memory, too"
            with client.acquire(chain) as lease:
                assert len(lease) == 4
            pid = second.node()["pid"]
    assert second.process.returncode == 0, second.end()
    until(lambda: not is_running(pid), 60)


def test_where_it_shall_not_survive_kill_9_leaves_no_data_plane_behind(socket_dir: Path) -> None:
    with Up(socket_dir, LARDER_APP__DATA_PLANE_SURVIVES="false") as up:
        up.until_ready()
        pid = up.node()["pid"]
        os.kill(pid, signal.SIGSTOP)  # SIGTERM would wait in it
        up.process.kill()
        up.process.wait(60)
        until(lambda: not is_running(pid), 60)


def failed(folder: Path, code: int = 1, **environ: str) -> list[str]:
    """Lines that `larder up` writes when it cannot start. The exit code is 2 if another start would fail, too."""
    failing = Up(folder, **environ)
    _, errors = failing.process.communicate(timeout=60)
    assert failing.process.returncode == code, errors
    return list(errors.splitlines())


@pytest.mark.parametrize(
    ("environ", "code", "sentence"),
    [
        ({"LARDER_APP__NO_SUCH": "1"}, 2, "LARDER_APP__NO_SUCH"),
        ({"LARDER_DATAPLANE__PIN_BUDGET_RATIO": "7"}, 2, "pin_budget_ratio"),
        ({"LARDER_APP__NODE_LOST_S": "-1"}, 2, "app.node_lost_s: expected 0.1 to 3600, got -1.0"),
        ({"LARDER_APP__PUSH_TIMEOUT_S": "nan"}, 2, "app.push_timeout_s: expected 0.05 to 600, got nan"),
        ({"LARDER_HTTP_PORT": "65536"}, 2, "http_port: expected 0 to 65535, got 65536"),
        ({"LARDER_DATABASE_URL": "nonsense"}, 2, "database_url: not a URL of a database"),
        ({"LARDER_DATABASE_URL": "mysql://h/n"}, 2, "database_url: Larder does not support mysql"),
        (
            {"LARDER_STATE_DIR": "/proc/nowhere"},
            1,
            "state_dir: expected a directory that this user can write to, got /proc/nowhere",
        ),
        ({"LARDER_HTTP_PORT": "{taken}"}, 1, PORT_TAKEN),
        *(
            ({"LARDER_APP__JOIN_URL": url}, 2 if "expected" in sentence else 1, f"Error: app.join_url: {sentence}")
            for url, sentence in {
                "tcp://127.0.0.1:{taken}": "tcp://127.0.0.1:{taken} cannot be bound: Address already in use",
                "tcp://198.51.100.1:8471": "tcp://198.51.100.1:8471 cannot be bound: Cannot assign requested address",
                "tcp://0.0.0.0:99999": "expected tcp://HOST:PORT",
                "ipc:///no/such/folder/join.sock": "ipc:///no/such/folder/join.sock cannot be bound: No such file",
            }.items()
        ),
    ],
)
def test_an_impossible_start_is_one_sentence_and_an_exit_code(
    socket_dir: Path, environ: dict[str, str], code: int, sentence: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = {name: value.replace("{taken}", port) for name, value in environ.items()}
        reported = failed(socket_dir, code, **{"LARDER_DATABASE_URL": f"sqlite:///{socket_dir}/larder.db"} | given)
    assert sentence.replace("{taken}", port) in reported[-1]
    assert not any("Traceback" in line or "started" in line for line in reported)
    assert not (socket_dir / "larder.db").exists(), "before anything is written"


def test_a_public_address_is_refused_until_a_token_exists(socket_dir: Path) -> None:
    *log, sentence = failed(socket_dir, 2, LARDER_HTTP_HOST="0.0.0.0")
    assert "can be reached from other machines" in sentence
    assert "LARDER_APP__ADMIN_TOKEN_FILE" in sentence
    assert not any("started" in line for line in log)


@pytest.mark.parametrize(
    "url", ["postgresql://u:secret@127.0.0.1:1/larder", "postgres://u@127.0.0.1:1/l", "sqlite:////proc/nowhere/l.db"]
)
def test_a_database_that_cannot_be_used_is_one_sentence_and_code_1(socket_dir: Path, url: str) -> None:
    *log, sentence = failed(socket_dir, LARDER_DATABASE_URL=url)
    assert [json.loads(line)["event"] for line in log] == ["larder.starting"]
    assert sentence.startswith("Error: the database ")
    assert sentence.endswith("; see LARDER_DATABASE_URL")
    assert "secret" not in sentence


def test_a_database_of_a_newer_release_is_one_sentence_and_code_1_and_stays_as_it_is(socket_dir: Path) -> None:
    file = socket_dir / "newer.db"
    with contextlib.closing(sqlite3.connect(file)) as newer:
        newer.executescript(
            "CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('9999')"
        )
    *log, sentence = failed(socket_dir, LARDER_DATABASE_URL=f"sqlite:///{file}")
    assert [json.loads(line)["event"] for line in log] == ["larder.starting"]
    assert sentence.startswith("Error: the database ")
    assert "the schema is at revision 9999, which this release does not know" in sentence
    assert sentence.endswith("; start that release, or restore a backup that this one made")
    with contextlib.closing(sqlite3.connect(file)) as newer:
        assert newer.execute("SELECT name FROM sqlite_master").fetchall() == [("alembic_version",)]


def test_print_config_starts_nothing(tmp_path: Path) -> None:
    environ = {**os.environ, "LARDER_STATE_DIR": str(tmp_path / "state"), "LARDER_POOL_BYTES": "4GiB"}
    done = subprocess.run([*LARDER, "up", "--print-config"], env=environ, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["common"]["pool_bytes"] == 4 << 30
    assert not (tmp_path / "state").exists()


def test_help_is_fast_because_it_imports_nothing_heavy() -> None:
    script = "import app.cli, sys; print([m for m in ('litestar', 'sqlalchemy', 'zmq', 'httpx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"


def test_the_description_of_the_api_is_the_published_one_and_needs_no_loop(golden: Golden) -> None:
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    golden("openapi.json", document())


def test_a_log_that_is_no_longer_read_stops_nothing(socket_dir: Path) -> None:
    settings = {"LARDER_HTTP_PORT": "0", "LARDER_LMCACHE_PORT": "0", "LARDER_POOL_BYTES": "8MiB"}
    environ = clean_environ(LARDER_STATE_DIR=str(socket_dir), **settings)
    with Forked("app", "up", env=environ, stderr=subprocess.PIPE, text=True) as up:
        assert up.stderr is not None
        url = next(json.loads(line)["url"] for line in up.stderr if '"larder.started"' in line)
        up.stderr.close()
        with httpx.Client(base_url=url, timeout=60, trust_env=False, verify=False) as api:
            for number in range(3):
                answer = api.put(f"/api/v1/quotas/t{number}?wait=30s", json={"limit_bytes": 1 << 20})
                assert answer.json()["status"]["applied"] is True
        up.send_signal(signal.SIGTERM)
        assert up.wait(timeout=60) == 0


def test_the_line_without_a_terminal_is_text_if_the_log_is(socket_dir: Path) -> None:
    settings = {"LARDER_APP__LOG_FORMAT": "console", "LARDER_APP__EMBEDDED_DATA_PLANE": "false"}
    with Up(socket_dir, subprocess.PIPE, **settings) as running:
        assert running.process.stdout is not None
        line = running.process.stdout.readline()
        assert line == f"Larder {__version__} serves: dashboard and API {running.url}\n"
    assert "larder.serving" not in running.end()


def test_a_client_that_reads_nothing_does_not_keep_its_connection(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_command, "STALLED_S", 0.5)
    settings = load(None, {"LARDER_STATE_DIR": str(socket_dir), "LARDER_HTTP_PORT": "0"})
    with up_command._listening(settings) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with server:
            server.settimeout(60)
            with pytest.raises(TimeoutError) as ended:
                server.sendall(b"x" * (64 << 20))
    assert ended.value.errno == errno.ETIMEDOUT, "the kernel ended it"
