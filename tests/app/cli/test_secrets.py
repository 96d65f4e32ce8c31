"""No secret of a setting is shown: secrets are planted, and everything that Larder writes is read."""

import io
import json
import re
import secrets
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, get_args

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from app.openapi import document
from app.settings import AppSettings
from dataplane.base.settings import Common, Secret, SecretUrl
from dataplane.engines.sglang.settings import BackendSettings
from dataplane.engines.vllm.settings import ConnectorSettings
from dataplane.settings import DataPlaneTable
from dataplane.tiers.mooncake.parameters import MooncakeParameters
from dataplane.tiers.redis.parameters import RedisParameters
from dataplane.tiers.references import Reference
from dataplane.tiers.s3.parameters import S3Parameters
from tests import forked
from tests.app.up import Up, until
from tests.environ import clean_environ
from tests.free_port import free_port
from tests.threads import join

SECRET = {
    Common: {"database_url"},
    AppSettings: {"admin_token"},
    S3Parameters: {"credentials"},
    RedisParameters: {"password"},
}
NOT_SECRET = {
    Common: {"http_host", "engine_socket", "control_url", "events_url", "kv_events_url", "state_dir"},
    AppSettings: {
        *("auth", "admin_token_file", "trusted_proxies", "allowed_hosts", "allowed_origins", "join_url"),
        *("join_addresses", "curve_key_file", "apply_file", "log_level", "log_format", "web_dist"),
    },
    DataPlaneTable: {
        *("node", "labels", "join_token_file", "advertise_control_url", "advertise_events_url"),
        *("lmcache_host", "lmcache_shm_name", "disk_tier_directories", "disk_tier_spill", "tier_cluster"),
        *("tier_secrets", "kv_events_replay_url", "kv_events_format", "kv_events_topics", "kv_events_medium"),
        *("log_level", "log_format"),
    },
    S3Parameters: {"url", "endpoint", "region", "storage_class", "ca_file"},
    RedisParameters: {"servers", "username", "ca_file", "certificate_file", "key_file"},
    MooncakeParameters: {"master", "metadata", "hostname", "protocol", "devices"},
    ConnectorSettings: {"socket", "model", "min_load_tokens", "verify"},
    BackendSettings: {"socket", "tenant", "model", "revision", "verify"},
}
"""Settings with text that is no secret. A new setting is declared `Secret`, `SecretUrl` or `Reference`, or added
here."""
HEAD, TAIL = (f"{word}{secrets.token_hex(8)}" for word in ("head", "tail"))


def _declared_secret(kind: Any) -> bool:
    return kind in (Secret, SecretUrl, Reference) or any(_declared_secret(each) for each in get_args(kind))


def _holds_text(kind: Any) -> bool:
    return kind is str or isinstance(kind, str) or any(_holds_text(each) for each in get_args(kind))


@pytest.mark.parametrize("kind", NOT_SECRET, ids=lambda kind: kind.__name__)
def test_each_setting_with_text_is_declared_secret_or_listed(kind: type[msgspec.Struct]) -> None:
    declared = {field.name for field in msgspec.structs.fields(kind) if _declared_secret(field.type)}
    texts = {field.name for field in msgspec.structs.fields(kind) if _holds_text(field.type)}
    assert declared == SECRET.get(kind, set())
    assert texts - declared == NOT_SECRET[kind]


def _urls() -> Iterator[str]:
    for between in ("", "@", ":", "/", "?", "#", "&", "%40", "?password=", " ", "'", "@:@/"):
        secret = f"{HEAD}{between}{TAIL}"
        yield f"postgresql://u:{secret}@127.0.0.1:1/larder"
        yield f"postgresql+asyncpg://127.0.0.1:1/larder?user=u&password={secret}&foo=1"
    secret = f"{HEAD}:/?#{TAIL}"
    yield f"postgresql://u:{secret}@no.such.host.invalid,127.0.0.1:1/larder"
    yield f"postgresql:///larder?host=127.0.0.1:1&host=127.0.0.2:1&user=u&password={secret}"
    yield f"postgresql://u:{secret}@127.0.0.1:1/larder?sslpassword={secret}"
    yield f"postgresql://u:{secret}/larder"
    yield f"mysql://u:{secret}@h/d"
    yield f"u:{secret}@h/d"
    yield f"sqlite://u:{secret}@h/d"


@pytest.mark.parametrize(
    "arguments",
    [
        ("up",),
        ("up", "--print-config"),
        ("dataplane", "--print-config"),
        ("doctor", "--json"),
        ("db", "upgrade"),
        ("db", "check"),
        ("db", "backup", "copy.tar"),
        ("db", "restore", "copy.tar"),
        ("audit", "verify"),
    ],
    ids=" ".join,
)
@pytest.mark.full
def test_no_command_shows_a_part_of_the_password_of_a_database_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copy.tar").touch()
    for number, url in enumerate(_urls()):
        environ = clean_environ(
            LARDER_STATE_DIR=str(tmp_path / "state"),
            LARDER_HTTP_PORT="0",
            LARDER_APP__EMBEDDED_DATA_PLANE="false",
            LARDER_DATABASE_URL=url,
        )
        done = forked.run("app", *arguments, env=environ, timeout=60)
        output = done.stdout + done.stderr
        assert output, url
        assert HEAD not in output, (number, url, output)
        assert TAIL not in output, (number, url, output)
        assert "Traceback" not in output, (number, url, output)


def _planted(name: str) -> str:
    return f"planted{name}{secrets.token_hex(12)}"


@pytest.mark.full
def test_a_larder_that_runs_shows_no_secret(socket_dir: Path, postgres_url: str) -> None:
    """The database accepts any password; the tiers, the collector and the proxy do not answer."""
    planted = {name: _planted(name) for name in ("database", "access", "key", "session", "redis", "headers", "proxy")}
    admin = _planted("admin") + "x" * 32
    (socket_dir / "token").write_text(admin)
    (socket_dir / "token").chmod(0o600)
    proxy = f"http://user:{planted['proxy']}@127.0.0.1:1"
    up = Up(
        socket_dir,
        LARDER_DATABASE_URL=str(
            sa.make_url(postgres_url).set(password=planted["database"]).render_as_string(hide_password=False)
        ),
        LARDER_APP__ADMIN_TOKEN_FILE=str(socket_dir / "token"),
        LARDER_APP__JOIN_URL=f"tcp://127.0.0.1:{free_port()}",
        LARDER_APP__LOG_LEVEL="debug",
        LARDER_DATAPLANE__LOG_LEVEL="debug",
        LARDER_TOKEN=admin,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1",
        OTEL_EXPORTER_OTLP_HEADERS=f"authorization={planted['headers']}",
        TIER_ACCESS=planted["access"],
        TIER_KEY=planted["key"],
        TIER_SESSION=planted["session"],
        TIER_REDIS=planted["redis"],
        **dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy"), proxy),
    )
    api = httpx.Client(base_url=up.url, headers={"Authorization": f"Bearer {admin}"}, trust_env=False, timeout=60)
    shown: dict[str, str] = {}
    node = socket_dir / "n"
    node.mkdir()
    with ExitStack() as after:
        after.callback(api.close)
        sent = io.StringIO()
        reader = threading.Thread(target=_read, args=(api, sent))
        after.callback(lambda: join(*[reader] if reader.ident else []))
        after.callback(lambda: shown.update({"log": up.end()}))
        up.until_ready()
        reader.start()
        credentials = {"access_key_id": "env:TIER_ACCESS", "secret_access_key": "env:TIER_KEY"}
        credentials |= {"session_token": "env:TIER_SESSION"}
        tiers = {
            "cold": ("s3", {"url": "s3://bucket", "endpoint": "http://127.0.0.1:1", "credentials": credentials}),
            "warm": ("redis", {"servers": ["127.0.0.1:1"], "username": "u", "password": "env:TIER_REDIS"}),
        }
        for name, (kind, parameters) in tiers.items():
            body = {"type": kind, "parameters": parameters, "budget_bytes": 1 << 30}
            answer = api.put(f"/api/v1/tiers/{name}", json=body)
            assert answer.is_success, answer.text
        until(lambda: all("refuse" in api.get(f"/api/v1/tiers/{name}").text for name in tiers), 60)
        for token in ("join-tokens", "tokens"):
            body = {"name": "one", "role": "viewer"} if token == "tokens" else {}
            made = api.post(f"/api/v1/{token}", json=body)
            assert made.is_success, made.text
            planted[token] = made.json()["token"]
        (node / "token").touch(0o600)
        (node / "token").write_text(planted["join-tokens"])
        control, events = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        environ = up.environ | {
            "LARDER_STATE_DIR": str(node),
            "LARDER_DATAPLANE__NODE": "joined",
            "LARDER_CONTROL_URL": control,
            "LARDER_EVENTS_URL": events,
            "LARDER_ENGINE_SOCKET": f"{node}/engine.sock",
        }
        arguments = ("dataplane", "--join-token-file", str(node / "token"))
        joined = forked.Forked(
            "app", *arguments, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        after.callback(lambda: shown.update({"log of the node": _ended(joined)}))
        until(lambda: '"name":"joined"' in api.get("/api/v1/nodes").text or joined.poll() is not None, 60)
        assert joined.poll() is None, _ended(joined)
        for key in (socket_dir / "manager.key", node / "curve.key"):
            planted[key.name] = key.read_text().split()[-1]
            assert len(planted[key.name]) == 40, "a key in Z85"
        for path, item in json.loads(document())["paths"].items():
            if "get" in item and "{" not in path and path != "/api/v1/events":
                shown[path] = api.get(path).text
        for command in ("status", "doctor", "tiers list", "why", "events", "audit list", "audit export", "tokens list"):
            done = up.cli(*command.split())
            shown[command] = done.stdout + done.stderr
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"LARDER_STATE_DIR={socket_dir}".encode() in (folder / "environ").read_bytes():
                    shown[f"title of {folder.name}"] = (folder / "cmdline").read_text()
            except OSError:
                continue
        assert len([name for name in shown if name.startswith("title")]) >= 3, shown.keys()
        until(lambda: "node.joined" in sent.getvalue() and '"joined"' in sent.getvalue(), 60)
        shown["events as they happen"] = sent.getvalue()
        assert len(shown) > 40, shown.keys()
    for name, text in shown.items():
        assert not re.search("planted[a-z]+", text), (name, text)
        assert not [each for each in planted.values() if each and each in text], (name, text)
    assert json.loads(shown["log"].splitlines()[0]), "the log was read"
    assert "joined" in shown["log of the node"]


def _read(api: httpx.Client, sent: io.StringIO) -> None:
    """Read events until the server ends."""
    with suppress(httpx.TransportError), api.stream("GET", "/api/v1/events") as stream:
        sent.writelines(stream.iter_text())


def _ended(process: forked.Forked) -> str:
    process.terminate()
    output, _ = process.communicate(timeout=60)
    return str(output)
