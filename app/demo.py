"""`larder demo`: a complete Larder with a synthetic load of three tenants, so that the dashboard has data to show.

Starts `larder up` and the load as child processes, sets quotas and a pin over the REST API as an operator would, prints
the URL of the dashboard, and runs until Ctrl-C. The state lives in a temporary folder unless `--state-dir` names one.
Also available as `python -m app.demo`.
"""

import errno
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import httpx
from rich.console import Console

from app import settings
from dataplane.base.settings import CONFIG_VARIABLE, Common, SettingsError, to_environ, with_defaults
from dataplane.base.units import format_size

POOL_BYTES = 256 << 20
BLOCK_BYTES = 64 << 10
QUOTAS = {
    "chat": ("128MiB", "conversations may use half of the pool"),
    "support": ("96MiB", "one long system prompt, many short questions"),
    "scanner": ("48MiB", "one-off prompts, limited so that they do not evict others"),
}
SURVIVES = "LARDER_APP__DATA_PLANE_SURVIVES"
"""Set to false, so that no data plane of the demonstration remains when it is killed."""
KEEP_MEMORY = "LARDER_DATAPLANE__KEEP_MEMORY_S"
"""Set to 0, so that no memory of the demonstration remains when it stops."""
GUARDS = ("LARDER_APP__AUTH", "LARDER_APP__ADMIN_TOKEN", "LARDER_APP__ADMIN_TOKEN_FILE")
"""Not passed on to the demonstration: its API answers every caller on this machine."""
PIN = "support-system-prompt"
READY_S = 60.0
STOP_S = 15.0
LINE_S = 5.0
"""Seconds between summary lines where the output cannot be rewritten in place."""

UP = (sys.executable, "-m", "app", "up")
LOAD = (sys.executable, "-m", "dataplane.replay.load")


class DemoError(Exception):
    """The demonstration cannot go on; the message says why."""


@click.command(name="demo", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=click.FloatRange(min=1), help="Stop after this time.  [default: never]")
@click.option(
    "--rate", default=20.0, show_default=True, type=click.FloatRange(0.1, 10_000), help="Requests a second."
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the state here.  [default: nowhere]",
)
def main(seconds: float | None, rate: float, state_dir: Path | None) -> None:
    """Start Larder with a made-up load of three tenants and open quotas and a pin, until Ctrl-C."""
    console = Console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        with ExitStack() as children:
            folder = state_dir or Path(
                children.enter_context(tempfile.TemporaryDirectory(prefix="larder-demo-"))
            )
            _demo(console, children, _surroundings(console, folder), folder, seconds, rate)
    except KeyboardInterrupt:
        console.print("\nstopped")
    except (DemoError, SettingsError, OSError) as error:
        raise click.ClickException(str(error)) from None


def _surroundings(console: Console, folder: Path) -> Common:
    """Return the settings of the demonstration: address and pool as configured, everything else in `folder`.

    A port that is in use, such as by a running Larder, is replaced by a free one.
    """
    given = settings.load().common
    port = given.http_port
    if not port or _is_taken(given.http_host, port):
        port = _free_port(given.http_host)
    if given.http_port not in (0, port):
        console.print(f"port {given.http_port} is in use: the demonstration takes {port}", highlight=False)
    own = Common(
        http_host=given.http_host,
        http_port=port,
        pool_bytes=given.pool_bytes or POOL_BYTES,
        state_dir=str(folder.absolute()),
    )
    return with_defaults(own, {})


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
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def _demo(
    console: Console, children: ExitStack, common: Common, folder: Path, seconds: float | None, rate: float
) -> None:
    config = folder / "demo.toml"
    config.touch()
    inherited = {name: value for name, value in os.environ.items() if not _is_shared(name)}
    environ = {
        **inherited,
        CONFIG_VARIABLE: str(config),
        **to_environ(common),
        SURVIVES: "false",
        KEEP_MEMORY: "0",
    }
    log_path = folder / "larder.log"
    log = children.enter_context(log_path.open("ab"))
    up = children.enter_context(_child([*UP], environ, stdout=log, stderr=log))
    host = f"[{common.http_host}]" if ":" in common.http_host else common.http_host
    url = f"http://{host}:{common.http_port}"
    api = children.enter_context(httpx.Client(base_url=url, timeout=10.0, trust_env=False))
    _wait_until_ready(api, up, log_path)

    arguments = [
        "--attach",
        common.engine_socket,
        "--block-bytes",
        str(BLOCK_BYTES),
        "--rate",
        str(rate),
        "--json",
    ]
    load = children.enter_context(_child([*LOAD, *arguments], environ, stdout=subprocess.PIPE, stderr=log))
    reports = _lines(load, up, log_path)
    shared = next(line for line in reports if line is not None)
    for tenant, (limit, note) in QUOTAS.items():
        _put(api, f"/api/v1/quotas/{tenant}", {"limit_bytes": limit, "note": note})
    _put(api, f"/api/v1/pins/{PIN}", {**shared, "note": "every support prompt starts with it"})
    console.print(f"dashboard: [bold]{url}[/]", highlight=False, soft_wrap=True)
    console.print(
        f"{len(QUOTAS)} quotas, a pin of {len(shared['keys'])} blocks, a pool of "
        f"{format_size(common.pool_bytes or 0)}; logs in {log_path}; Ctrl-C stops everything",
        highlight=False,
        soft_wrap=True,
    )
    wrong = _summarize(console, reports, seconds)
    if wrong:
        raise DemoError(f"{wrong} blocks came back with wrong bytes")


def _is_shared(variable: str) -> bool:
    """Return whether the variable sets a shared setting, the path of the configuration, or authentication."""
    names = [f"LARDER_{name.upper()}" for name in Common.__struct_fields__]
    return variable in (*names, *GUARDS, CONFIG_VARIABLE)


@contextmanager
def _child(command: list[str], environ: dict[str, str], **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a child that does not receive Ctrl-C; stop it with SIGTERM at the end."""
    process = subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, start_new_session=True, **streams
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)
        if process.stdout is not None:
            process.stdout.close()


def _wait_until_ready(api: httpx.Client, up: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + READY_S
    answer = "nothing"
    while time.monotonic() < end:
        if up.poll() is not None:
            raise DemoError(_ended("larder up", up, log))
        try:
            reply = api.get("/readyz")
        except httpx.TransportError:
            time.sleep(0.05)
            continue
        if reply.status_code == httpx.codes.OK:
            return
        answer = f"{reply.status_code} {reply.text[:200]}"
        time.sleep(0.1)
    raise DemoError(f"{api.base_url}/readyz answered {answer} for {READY_S:.0f} s; see {log}")


def _put(api: httpx.Client, path: str, record: dict[str, Any]) -> None:
    """Store a record. Raises DemoError if the API refuses it."""
    try:
        reply = api.put(path, json=record)
    except httpx.TransportError as error:
        raise DemoError(f"PUT {path}: {error}") from None
    if not reply.is_success:
        raise DemoError(f"PUT {path}: {reply.status_code} {reply.text[:500]}")


def _lines(
    load: subprocess.Popen[bytes], up: subprocess.Popen[bytes], log: Path
) -> Iterator[dict[str, Any] | None]:
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
            *whole, pending = (pending + data).split(b"\n")
            for line in whole:
                yield json.loads(line)


def _ended(name: str, process: subprocess.Popen[bytes], log: Path) -> str:
    last = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
    return f"{name} ended with code {process.returncode}:\n{last}"


def _summarize(console: Console, reports: Iterator[dict[str, Any] | None], seconds: float | None) -> int:
    """Show one live line of counts, or a line every few seconds without a terminal, for `seconds` (None: forever).
    Return the number of wrong blocks."""
    end = time.monotonic() + seconds if seconds else float("inf")
    wrong = 0
    printed_at = -LINE_S
    with console.status("waiting for the first requests") as status:
        for counts in reports:
            if time.monotonic() >= end:
                break
            if counts is None:
                continue
            wrong = counts["verify_errors"]
            text = _summary(counts)
            if console.is_terminal:
                status.update(text)
            elif time.monotonic() - printed_at >= LINE_S:
                console.print(text, highlight=False, soft_wrap=True)
                printed_at = time.monotonic()
    return wrong


def _summary(counts: dict[str, Any]) -> str:
    ratios = ", ".join(f"{name} {tenant['hit_ratio']:.0%}" for name, tenant in counts["tenants"].items())
    refused = sum(counts["blocks_refused"].values())
    return (
        f"{counts['requests']:,} requests · hits: {ratios} · stored {format_size(counts['stored_bytes'])}, "
        f"read {format_size(counts['read_bytes'])} · lookup {counts['lookup_us']['p50']:.0f} µs · "
        f"{refused:,} refused, {counts['verify_errors']} wrong"
    )


if __name__ == "__main__":
    main(prog_name="larder demo")
