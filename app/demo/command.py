"""`larder demo`: a complete Larder with a synthetic load of three tenants, so that the dashboard has data to show.

Starts `larder up` and the load as child processes, sets quotas and a pin over the REST API as an operator would, prints
the URL of the dashboard, and runs until Ctrl-C or SIGTERM. All settings apply, except those of its own state: database,
control and event sockets are in a temporary folder, unless `--state-dir` names one. With `--s3`, a local S3 server
(`app.demo.s3`) is a tier behind the disk, and the pool and the disk tier are so small that all three serve blocks.
"""

import errno
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec
from rich.console import Console

from app import settings
from app.cli.support.machine.exit_watchdog import BEYOND_GRACE_S
from app.demo import s3 as s3_server
from app.demo.incidents import ACTOR, INCIDENTS, Scene, Steps
from app.settings import Settings
from dataplane.base.addresses import http_url
from dataplane.base.child_command import module_command
from dataplane.base.settings import Common, SettingsError, to_environ, with_defaults
from dataplane.base.units import format_size

POOL_BYTES = 256 << 20
DISK_BYTES = 1 << 30
SMALL_POOL_BYTES, SMALL_DISK_BYTES = 32 << 20, 128 << 20
"""Sizes with `--s3`: smaller than the conversations of the load."""
BLOCK_BYTES = 64 << 10
QUOTAS = {
    "chat": ("128MiB", "conversations may use half of the pool"),
    "support": ("96MiB", "one long system prompt, many short questions"),
    "scanner": ("48MiB", "one-off prompts, limited so that they do not evict others"),
}
OWN = {
    "LARDER_APP__EMBEDDED_DATA_PLANE": "true",
    "LARDER_APP__DATA_PLANE_SURVIVES": "false",
    "LARDER_DATAPLANE__KEEP_MEMORY_S": "0",
}
"""Settings without which a data plane or memory of the demonstration would remain when it stops or is killed."""
ADMIN_TOKEN = "LARDER_APP__ADMIN_TOKEN"
TIER_SECRETS = "LARDER_DATAPLANE__TIER_SECRETS"
TIER_FOLDER = "disk-tier"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PIN = "support-system-prompt"
READY_S = 60.0
STOP_S = 15.0
LINE_S = 5.0
"""Seconds between summary lines where the output cannot be rewritten in place."""

UP = tuple(module_command("app", "up"))
LOAD = tuple(module_command("dataplane.replay.load"))


class DemoError(Exception):
    """The demonstration cannot continue; the message says why."""


@click.command(name="demo", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=click.FloatRange(min=1), help="Stop after this time.  [default: never]")
@click.option(
    "--rate", default=20.0, show_default=True, type=click.FloatRange(0.1, 10_000), help="Requests per second."
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the state in this folder.  [default: none is kept, whatever the settings say]",
)
@click.option("--s3", is_flag=True, help="Add a local S3 server as a tier behind the disk.")
@click.option("--incident", type=click.Choice(list(INCIDENTS)), help="Incident to cause while the load runs.")
@click.option(
    "--incident-at",
    default=30.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Seconds of load before the incident.",
)
def main(
    seconds: float | None, rate: float, state_dir: Path | None, s3: bool, incident: str | None, incident_at: float
) -> None:
    """Start Larder with a synthetic load of three tenants, with quotas and a pin, until Ctrl-C or SIGTERM.

    All settings apply, except those of the state directory, the database, and the control and event sockets."""
    if s3 and (absent := s3_server.missing()):
        raise click.ClickException(absent)
    console = Console()
    signal.signal(signal.SIGHUP, lambda number, _: sys.exit(128 + number))
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, _stop)
    try:
        with ExitStack() as children:
            folder = state_dir or Path(children.enter_context(tempfile.TemporaryDirectory(prefix="larder-demo-")))
            configured = settings.load()
            configured = msgspec.structs.replace(
                configured, common=_surroundings(console, configured.common, folder, small=s3)
            )
            planned = None if incident is None else PlannedIncident(incident, incident_at)
            _demo(console, children, configured, folder, seconds, rate, planned, s3=s3)
    except KeyboardInterrupt:
        console.print("\nstopped")
    except (DemoError, SettingsError, OSError) as error:
        raise click.ClickException(str(error)) from None
    except httpx.TransportError as error:
        raise click.ClickException(f"{error.request.method} {error.request.url}: {error}") from None


def _stop(_number: int, _frame: object) -> None:
    """End the demonstration. Further signals must not interrupt the stop of its children."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _disk_tier(folder: Path, *, small: bool) -> dict[str, str]:
    return {
        "LARDER_DATAPLANE__DISK_TIER_DIRECTORIES": str(folder.absolute()),
        "LARDER_DATAPLANE__DISK_TIER_BYTES": str(SMALL_DISK_BYTES if small else DISK_BYTES),
    }


def _surroundings(console: Console, configured: Common, folder: Path, *, small: bool) -> Common:
    """Return the shared settings of the demonstration: addresses and pool as configured, its state in `folder`.

    A port that is in use, such as by a running Larder, is replaced by a free one.
    """
    default_socket = with_defaults(msgspec.structs.replace(configured, engine_socket=""), os.environ).engine_socket
    surroundings = Common(
        http_host=configured.http_host,
        http_port=_usable_port(console, configured.http_host, configured.http_port),
        lmcache_port=configured.lmcache_port and _usable_port(console, "127.0.0.1", configured.lmcache_port),
        engine_socket="" if configured.engine_socket == default_socket else configured.engine_socket,
        kv_events_url=configured.kv_events_url,
        pool_bytes=configured.pool_bytes or (SMALL_POOL_BYTES if small else POOL_BYTES),
        state_dir=str(folder.absolute()),
    )
    return with_defaults(surroundings, {})


def _usable_port(console: Console, host: str, configured_port: int) -> int:
    """Return the given port, or a free one if it is 0 or in use."""
    if configured_port and not _is_taken(host, configured_port):
        return configured_port
    port = _free_port(host)
    if configured_port:
        console.print(f"port {configured_port} is in use: the demonstration uses {port}", highlight=False)
    return port


def _is_taken(host: str, port: int) -> bool:
    try:
        _bound(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return True
    return False


def _free_port(host: str) -> int:
    return _bound(host, 0)


def _bound(host: str, port: int) -> int:
    """Bind for a moment, and return the port."""
    family, address = settings.resolved(host, port)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        return int(probe.getsockname()[1])


@dataclass
class PlannedIncident:
    """An incident and its start time."""

    name: str
    at_s: float
    """Seconds after the load has started."""
    started: float = field(default_factory=time.monotonic)
    steps: Steps | None = None

    def step(self, scene: Scene) -> None:
        """Run the steps that are due. Raises DemoError if the API refuses a change."""
        if time.monotonic() - self.started < self.at_s:
            return
        if self.steps is None:
            self.steps = INCIDENTS[self.name](scene)
        try:
            wait_s = next(self.steps, float("inf"))
        except httpx.HTTPStatusError as error:
            raise DemoError(f"{error.request.method} {error.request.url}: {error.response.text[:500]}") from None
        self.started, self.at_s = time.monotonic(), wait_s


def _demo(
    console: Console,
    children: ExitStack,
    configured: Settings,
    folder: Path,
    seconds: float | None,
    rate: float,
    incident: PlannedIncident | None,
    *,
    s3: bool,
) -> None:
    common = configured.common
    disk = folder / TIER_FOLDER
    environ = {**_disk_tier(disk, small=s3), **os.environ, **to_environ(common), **OWN}
    environ[TIER_SECRETS] = s3_server.allowed(folder, os.environ.get(TIER_SECRETS, ""))
    token = settings.admin_token(configured.app)
    needed = incident is not None or settings.requires_token(configured)  # an incident has a named actor
    made_token = "" if token or not needed else secrets.token_hex(32)
    if made_token:
        token = environ[ADMIN_TOKEN] = made_token
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log_path = folder / "larder.log"
    log = children.enter_context(log_path.open("ab"))
    server = children.enter_context(s3_server.running(log, folder)) if s3 else None
    stops_in_s = 2 * configured.app.shutdown_grace_s + BEYOND_GRACE_S + STOP_S
    up = children.enter_context(_child([*UP], environ, stops_in_s, stdout=log, stderr=log))
    url = http_url(common.http_host, common.http_port)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    api = children.enter_context(httpx.Client(base_url=url, timeout=10.0, trust_env=False, headers=headers))
    _wait_until_ready(api, up, log_path)

    arguments = ["--attach", common.engine_socket, "--block-bytes", str(BLOCK_BYTES), "--rate", str(rate), "--json"]
    load = children.enter_context(_child([*LOAD, *arguments], environ, STOP_S, stdout=subprocess.PIPE, stderr=log))
    reports = _lines(load, up, log_path)
    shared = next(line for line in reports if line is not None)
    for tenant, (limit, note) in QUOTAS.items():
        _put(api, f"/api/v1/quotas/{tenant}", {"limit_bytes": limit, "note": note})
    _put(api, f"/api/v1/pins/{PIN}", {**shared, "note": "every support prompt starts with it"})
    _set_s3_tier(api, server, folder, log_path)
    console.print(f"dashboard: [bold]{url}[/]", highlight=False, soft_wrap=True)
    if made_token:
        console.print(f"token: {made_token}", highlight=False, soft_wrap=True)
        console.print(
            f"for commands: export LARDER_URL={url} LARDER_TOKEN={made_token}", highlight=False, soft_wrap=True
        )
    copies = folder / s3_server.OBJECTS
    s3_place = "" if server is None else f" and in S3 on port {server.port}, with copies in {copies}"
    console.print(
        f"{len(QUOTAS)} quotas, a pin of {len(shared['keys'])} blocks, a pool of "
        f"{format_size(common.pool_bytes or 0)}, blocks on disk in {disk}"
        f"{s3_place}; logs in {log_path}; Ctrl-C stops everything",
        highlight=False,
        soft_wrap=True,
    )
    step_incident = None
    if incident is not None:
        scene = _scene(console, children, api, url, disk)
        incident.started = time.monotonic()
        step_incident = partial(incident.step, scene)
    wrong_blocks = _summarize(console, reports, seconds, step_incident, TierShares(api))
    if wrong_blocks:
        raise DemoError(f"{wrong_blocks} blocks came back with wrong bytes")


def _set_s3_tier(api: httpx.Client, server: s3_server.LocalS3Server | None, folder: Path, log: Path) -> None:
    """Set the tier of the server; without a server, remove the tier of an earlier demonstration. Raises DemoError,
    TransportError."""
    path = f"/api/v1/tiers/{s3_server.TIER}"
    current = api.get(path)
    exists = current.is_success and current.json()["note"] == s3_server.NOTE
    if server is None:
        if exists:
            api.delete(path, headers={"If-Match": current.headers["ETag"]})
        return
    if not server.wait_ready():
        raise DemoError(f"the S3 server did not start within {s3_server.START_S:.0f} s; see {log}")
    s3_server.write_key(folder)
    if current.is_success and not exists:
        raise DemoError(
            f"the state directory has another tier {s3_server.TIER!r}; delete the tier, or use another directory"
        )
    _put(api, path, s3_server.record(server.port, folder), {"If-Match": current.headers["ETag"]} if exists else {})
    _wait_until_tier_serves(api, path)


def _wait_until_tier_serves(api: httpx.Client, path: str) -> None:
    """Wait until the node has acknowledged the tier and uses it. Raises DemoError if the node refuses the record, or
    does not use the tier in time."""
    end = time.monotonic() + READY_S
    problem = "no node has reported it"
    while time.monotonic() < end:
        try:
            tier = api.get(path).raise_for_status().json()
        except httpx.HTTPError as error:
            problem = str(error)
            time.sleep(0.1)
            continue
        for node, faults in sorted(tier["faults"].items()):
            faults_text = "; ".join(f"{fault['path']}: {fault['message']}" for fault in faults)
            raise DemoError(f"{node} refused the tier {s3_server.TIER}: {faults_text}")
        states = tier["status"]["nodes"].values()
        if states and all(at["state"] == "in_sync" for at in states):
            stats = tier["stats"].values()
            if stats and all(tier_stats["serves"] for tier_stats in stats):
                return
            problem = (
                "; ".join(tier_stats["reason"] for tier_stats in stats if tier_stats["reason"]) or "it is being opened"
            )
        time.sleep(0.1)
    raise DemoError(f"the tier {s3_server.TIER} is not in service after {READY_S:.0f} s: {problem}")


class TierShares:
    """The share of each tier in the blocks that were loaded, as the nodes report it."""

    def __init__(self, api: httpx.Client) -> None:
        self._api = api
        self._read_at = -LINE_S
        self._loaded: dict[str, int] = {}

    def of(self, loaded: float) -> str:
        """Return the shares of memory and of each tier as text. `loaded` is the share of all tiers together."""
        if time.monotonic() - self._read_at >= LINE_S:
            self._read_at = time.monotonic()
            self._read()
        total = sum(self._loaded.values())
        shares = {name: loaded * blocks / total for name, blocks in self._loaded.items()} if total else {}
        texts = [f"memory {1 - sum(shares.values()):.0%}"]
        return ", ".join([*texts, *(f"{name} {share:.0%}" for name, share in shares.items())])

    def _read(self) -> None:
        """Read how many blocks each tier loaded. Keep the last numbers while the API does not answer."""
        try:
            nodes = self._api.get("/api/v1/nodes").raise_for_status().json()["items"]
        except httpx.HTTPError:
            return
        tiers = [tier for node in nodes if node["stats"] for tier in node["stats"]["tiers"]]
        self._loaded = {tier["name"]: tier["loaded_blocks"] for tier in tiers}


def _scene(console: Console, children: ExitStack, api: httpx.Client, url: str, disk: Path) -> Scene:
    """Return a scene with a token for the actor. Raises DemoError, TransportError."""
    api.delete(f"/api/v1/tokens/{ACTOR}")  # that of an earlier run in the same state directory
    answer = api.post("/api/v1/tokens", json={"name": ACTOR, "role": "operator"})
    if not answer.is_success:
        raise DemoError(f"POST /api/v1/tokens: {answer.status_code} {answer.text[:500]}")
    headers = {"Authorization": f"Bearer {answer.json()['token']}"}
    operator = children.enter_context(httpx.Client(base_url=url, timeout=10.0, trust_env=False, headers=headers))

    def say(text: str) -> None:
        now = datetime.now(UTC).strftime("%H:%M:%SZ")
        console.print(f"{now} incident: {text}", highlight=False, soft_wrap=True)

    scene = Scene(api, operator, say, disk)
    children.callback(scene.end)
    return scene


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def _child(
    command: list[str], environ: dict[str, str], stops_in_s: float, **streams: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a child that does not receive Ctrl-C; stop it with SIGTERM at the end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # a child that was started must also be stopped
    try:
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_unblock, **streams
        )
    except BaseException:
        _unblock()
        raise
    try:
        _unblock()
        yield process
    finally:
        process.terminate()
        try:
            process.wait(stops_in_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(4 * STOP_S)  # a busy machine takes its time to free much memory
        if process.stdout is not None:
            process.stdout.close()


def _wait_until_ready(api: httpx.Client, up: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + READY_S
    answer = "nothing"
    while time.monotonic() < end:
        if up.poll() is not None:
            raise DemoError(_ended("larder up", up, log))
        try:
            reply = api.get("/healthz/fleet")
        except httpx.TransportError:
            time.sleep(0.05)
            continue
        if reply.status_code == httpx.codes.OK:
            return
        answer = f"{reply.status_code} {reply.text[:200]}"
        time.sleep(0.1)
    raise DemoError(f"{api.base_url}/healthz/fleet answered {answer} for {READY_S:.0f} s; see {log}")


def _put(api: httpx.Client, path: str, record: dict[str, Any], headers: dict[str, str] | None = None) -> None:
    """Store a record, or leave the one of an earlier demonstration as it is. Raises DemoError if the API refuses it,
    TransportError."""
    reply = api.put(path, json=record, headers=headers)
    if not reply.is_success and reply.status_code != httpx.codes.PRECONDITION_REQUIRED:
        raise DemoError(f"PUT {path}: {reply.status_code} {reply.text[:500]}")


def _lines(load: subprocess.Popen[bytes], up: subprocess.Popen[bytes], log: Path) -> Iterator[dict[str, Any] | None]:
    """Yield each object that the load prints, and None at least four times a second while it prints nothing.

    Raises DemoError when a child exits by itself.
    """
    assert load.stdout is not None
    descriptor = load.stdout.fileno()
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if up.poll() is not None:
                raise DemoError(_ended("larder up", up, log))
            if not selector.select(timeout=0.25):
                yield None
                continue
            data = os.read(descriptor, 1 << 16)
            if not data:
                load.wait(STOP_S)
                raise DemoError(_ended("the load", load, log))
            *complete, pending = (pending + data).split(b"\n")
            for line in complete:
                yield json.loads(line)


def _ended(name: str, process: subprocess.Popen[bytes], log: Path) -> str:
    last = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
    return f"{name} ended with code {process.returncode}:\n{last}"


def _summarize(
    console: Console,
    reports: Iterator[dict[str, Any] | None],
    seconds: float | None,
    step_incident: Callable[[], None] | None,
    shares: TierShares,
) -> int:
    """Show one live line of counts, or a line every few seconds without a terminal, for `seconds` (None: forever).
    Return the number of wrong blocks."""
    end = time.monotonic() + seconds if seconds else float("inf")
    wrong_blocks = 0
    printed_at = -LINE_S
    with console.status("waiting for the first requests") as status:
        for counts in reports:
            if time.monotonic() >= end:
                break
            if step_incident is not None:
                step_incident()
            if counts is None:
                continue
            wrong_blocks = counts["verify_errors"]
            text = _summary(counts, shares)
            if console.is_terminal:
                status.update(text)
            elif time.monotonic() - printed_at >= LINE_S:
                console.print(text, highlight=False, soft_wrap=True)
                printed_at = time.monotonic()
    return wrong_blocks


def _summary(counts: dict[str, Any], shares: TierShares) -> str:
    ratios = ", ".join(f"{name} {tenant['hit_ratio']:.0%}" for name, tenant in counts["tenants"].items())
    refused = sum(counts["blocks_refused"].values())
    loaded = counts["blocks_loaded"] / max(1, counts["blocks_hit"])
    return (
        f"{counts['requests']:,} requests · hits: {ratios}, from {shares.of(loaded)} · "
        f"stored {format_size(counts['stored_bytes'])}, "
        f"read {format_size(counts['read_bytes'])} · lookup {counts['lookup_us']['p50']:.0f} µs · "
        f"{refused:,} refused, {counts['verify_errors']} wrong"
    )
