"""`larder doctor`: check this machine and suggest fixes."""

import asyncio
import os
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click
import msgspec

from app.cli.support.api.client import base_url, call, default_url
from app.cli.support.machine import checkup, gpus
from app.cli.support.machine.checkup import CheckResult
from app.cli.support.printing import caches, findings, show
from app.cli.support.printing.terminal import Column, table
from app.cli.support.resources.options import Output, output_option
from app.settings import Settings, load
from dataplane.base.child_command import module_command
from dataplane.base.redaction import without_password
from dataplane.base.settings import URL_VARIABLE, SettingsError
from dataplane.base.units import format_size
from dataplane.protocol.spaces import LMCACHE

if TYPE_CHECKING:  # the real import takes as long as all the checks
    from app.store.condition import DatabaseCondition

CLOCKS_APART_S = 2.0
HOLDER_PROGRAM = "dataplane/holding/holder.py"
MAX_MODELS = 10
"""Most models that are named."""
ASK_S = 5.0
"""Seconds to wait for the answer of the Larder that runs on this machine."""
_MARKS = {"ok": "ok", "warning": "warning", "failure": "FAILURE"}
_COLUMNS = (
    Column("", lambda check: _MARKS[check.state]),
    Column("what", lambda check: check.name),
    Column(
        "found",
        lambda check: f"{check.message}. To fix it: {check.fix}" if check.fix else check.message,
        text=True,
        wraps=True,
    ),
)


@click.command()
@click.option("--config", type=click.Path(dir_okay=False), help="Settings file; default LARDER_CONFIG, ./larder.toml.")
@output_option
def doctor(config: str | None, output: Output) -> None:
    """Check this machine and suggest fixes. The command changes nothing. The exit code is 1 if a check fails."""
    if config is not None:
        os.environ["LARDER_CONFIG"] = config
    checks = _look(config)
    failed = any(check.state == "failure" for check in checks)
    report = {"ok": not failed, "checks": [asdict(check) for check in checks]}
    if not output.data(report, [check.name for check in checks if check.state != "ok"]):
        table("This machine", _COLUMNS, checks, wide=output.wide)
    if failed:
        raise click.exceptions.Exit(1)


def _look(config: str | None) -> list[CheckResult]:
    try:
        settings = load(config)
    except SettingsError as error:
        return [CheckResult("settings", "failure", str(error), "see docs/reference/settings.md")]
    plane, settings_check = _data_plane()
    runs = checkup.runs_here(settings.state_dir)
    pool_bytes = int(plane.get("pool_bytes") or settings.common.pool_bytes or 0)
    table = plane.get("dataplane")
    table = table if isinstance(table, dict) else {}
    node = _running_node(settings) if runs else None
    if node is None:
        runs_too = "; the running server was not reached, and may have other settings" if runs else ""
        settings_check = replace(settings_check, message=f"in this shell: {settings_check.message}{runs_too}")
    else:
        settings_check = _of_server(node, settings_check, pool_bytes)
        pool = node["stats"]["pool"]
        pool_bytes = int(pool["capacity_bytes"])
        table = {
            **table,
            "huge_pages": pool.get("huge_pages", False),
            "mlock": pool.get("locked", False),
            "gpu_pool_bytes": node["stats"].get("gpu_copy_pool_bytes", 0),
        }
    checked = list(checkup.checks(settings, table, pool_bytes, runs=runs))
    tried = gpus.look(checked)
    on_gpus = gpus.gpu_copies(int(table.get("gpu_pool_bytes", 0)), [*checked, *tried])
    cached = _cache(settings) if runs else _held_memory(settings)
    unknown_weights = [] if node is None else _unknown_weights(node["stats"].get("spaces", ()))
    return [
        settings_check,
        *_other_server(),
        *checked,
        *tried,
        *on_gpus,
        *_database(settings),
        *cached,
        *unknown_weights,
    ]


def _other_server() -> list[CheckResult]:
    """Report where the other commands look if that is not the Larder of this machine."""
    try:
        base = base_url(None)
    except click.ClickException as error:
        return [CheckResult("server", "failure", error.message, f"change {URL_VARIABLE} or the context")]
    if base == default_url():
        return []
    return [CheckResult("server", "ok", f"other commands ask {base}, which is not checked here: larder status")]


def _running_node(settings: Settings) -> dict[str, Any] | None:
    """Return the node of this machine as the running server reports it; None if the server is not reached, or if the
    token may not see the node."""
    if settings.common.http_port == 0:
        return None
    try:
        nodes: list[dict[str, Any]] = call(default_url(), "GET", "/api/v1/nodes", timeout_s=ASK_S)["items"]
        local = [node for node in nodes if node["stats"] and not node["public_key"] and node["state"] != "lost"]
        return local[0] if local and local[0]["stats"]["pool"]["capacity_bytes"] else None
    except (click.ClickException, ValueError, KeyError, TypeError, AttributeError):
        return None


def _of_server(node: dict[str, Any], settings_check: CheckResult, shell_bytes: int) -> CheckResult:
    """Return the line about the settings in force on the running server, and what this shell has instead."""
    if settings_check.state != "ok":
        return replace(settings_check, message=f"in this shell: {settings_check.message}")
    pool = node["stats"]["pool"]
    in_force = [f"pool {format_size(pool['capacity_bytes'])}"]
    in_force += [words for words, name in (("huge pages", "huge_pages"), ("locked memory", "locked")) if pool.get(name)]
    if gpu_bytes := node["stats"].get("gpu_copy_pool_bytes", 0):
        in_force.append(f"GPU copies {format_size(gpu_bytes)}")
    message = f"on the running server at {default_url()}, node {node['name']}: {', '.join(in_force)}"
    if shell_bytes != pool["capacity_bytes"]:
        message += (
            f"; this shell has a pool of {format_size(shell_bytes)} ({settings_check.message}), which is not in use"
        )
    return replace(settings_check, message=message)


def _held_memory(settings: Settings) -> list[CheckResult]:
    """Report the memory that a stopped data plane left for the next one."""
    from dataplane.holding.requests import HolderFailed, describe

    name = "kept memory"
    try:
        memory = describe(settings.state_dir)
    except HolderFailed as error:
        return [
            CheckResult(
                name,
                "warning",
                str(error),
                f"run larder doctor again; a start ends a holder that does not answer ({HOLDER_PROGRAM} in ps)",
            )
        ]
    if memory is None or memory.seconds_left is None:
        return []
    amount = f"{memory.blocks:,} blocks ({format_size(memory.bytes)}) of a Larder that ended"
    fix = "start Larder to use them again, or release them: larder down"
    return [
        CheckResult(name, "ok", f"{amount} are kept for {memory.seconds_left:.0f} s more, by process {memory.pid}", fix)
    ]


def _data_plane() -> tuple[dict[str, Any], CheckResult]:
    """Return the effective settings of the data plane, and the result of checking them. The data plane reads and checks
    them in a subprocess."""
    command = module_command("dataplane", "--print-config")
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        lines = completed.stderr.strip().splitlines() or [f"exit code {completed.returncode}"]
        return {}, CheckResult("settings", "failure", lines[-1][:400], "see docs/reference/settings.md")
    try:
        plane = msgspec.json.decode(completed.stdout, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}, CheckResult(
            "settings", "failure", "the data plane did not print its settings", "install Larder again"
        )
    file = os.environ.get("LARDER_CONFIG") or ("larder.toml" if os.path.isfile("larder.toml") else "")
    return plane, CheckResult("settings", "ok", f"{file} and the environment" if file else "the environment; no file")


def _cache(settings: Settings) -> list[CheckResult]:
    """Report the caches and pins of the Larder that runs on this machine."""
    if settings.common.http_port == 0:
        return [CheckResult("cache", "ok", "not checked: the port of the Larder on this machine is unknown")]
    try:
        overview = call(default_url(), "GET", "/api/v1/overview", timeout_s=ASK_S)
        reporting = [node for node in overview["nodes"] if node["stats"] is not None]
        results = _findings(overview, settings) + [
            _node_cache(node) for node in reporting if not node["stats"].get("cold")
        ]
        results += [result for node in reporting for result in (*_tiers(node), *_layouts(node))]
        return results or [CheckResult("cache", "ok", "no node has reported its cache, or this token may not read it")]
    except click.ClickException as error:
        return [CheckResult("cache", "ok", f"not checked: {error.message}")]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [CheckResult("cache", "ok", f"not checked: the server at {default_url()} is not a Larder")]


_NAMES = {"cache_cold": "cache", "gateway_client_refused": "LMCache client"}
_STATES: dict[str, checkup.State] = {"critical": "failure", "warning": "warning", "info": "ok"}


def _findings(overview: dict[str, Any], settings: Settings) -> list[CheckResult]:
    """Report what the server found about nodes, tiers and pins; of a lost node also that it may not accept a key that
    was made after its last answer."""
    from app.push.keys import key_path

    try:
        key_made_at = key_path(settings.state_dir, settings.app.curve_key_file).stat().st_mtime
    except OSError:
        key_made_at = 0.0
    nodes = {node["name"]: node for node in overview["nodes"]}
    results = []
    for finding in overview.get("findings", ()):
        kind, message, fix = finding["subject"]["kind"], findings.line(finding), findings.fix(finding)
        if kind not in ("node", "tier", "pin"):
            continue
        node = nodes.get(finding["subject"]["node"])
        if finding["code"] == "node_lost" and node is not None:
            fix = f"larder why {node['name']}, then {fix}"
            if node["public_key"] and key_made_at > node["seen_at"]:
                made_ago = show.ago(key_made_at)
                message += f"; the manager's key is newer ({made_ago}), so the node may not accept it"
                fix = "see A lost management plane's key in docs/operate/fleet.md"
        name = _NAMES.get(finding["code"], {"tier": "tiers", "pin": "pins"}.get(kind, kind))
        results.append(CheckResult(name, _STATES[finding["severity"]], message, fix))
    return results


def _unknown_weights(spaces: Iterable[dict[str, Any]]) -> list[CheckResult]:
    """Report the models of LMCache's clients, which do not say what weights they have loaded. A path is a warning,
    because files change more easily than what a repository's name stands for."""
    models = sorted({space["model"] for space in spaces if space["gateway"] == LMCACHE})
    return [
        CheckResult(
            "weights",
            "warning" if model.startswith(("/", ".", "~")) else "ok",
            f"LMCache's connector does not say which weights of {model} an engine has loaded",
            f"if they change: delete the model's permanent pins, larder invalidate --model {shlex.quote(model)}, and"
            " only then start engines with the new ones; or give these another path or name",
        )
        for model in models[:MAX_MODELS]
    ]


def _node_cache(node: dict[str, Any]) -> CheckResult:
    stats = node["stats"]
    blocks = show.plural(stats["pool"]["blocks"], "block")
    holds = f"cache of {node['name']} holds {blocks} ({show.size(stats['pool']['ready_bytes'])})"
    return CheckResult("cache", "ok", caches.began(node) or holds)


def _tiers(node: dict[str, Any]) -> list[CheckResult]:
    """Report tiers of a node that are in service."""
    serving = [tier for tier in show.tiers(node) if tier["serves"]]
    if not serving:
        return []
    serve = ", ".join(tier["name"] + (f" ({listing})" if (listing := show.listing(tier)) else "") for tier in serving)
    return [CheckResult("tiers", "ok", f"tiers of {node['name']} in service: {serve}")]


def _layouts(node: dict[str, Any]) -> list[CheckResult]:
    """Report models of which a node's LMCache workers have several layouts of chunks."""
    layouts: dict[tuple[str, int], set[str]] = {}
    for instance in (node["stats"].get("gateway") or {}).get("instances", ()):
        layouts.setdefault((instance["model"], instance["world_size"]), set()).add(
            f"{instance['layout']} {instance['dtype']}"
        )
    return [
        CheckResult(
            "layouts",
            "warning",
            f"LMCache workers of {model} (world size {world_size}) on {node['name']} have chunks of several layouts: "
            f"{', '.join(sorted(chunk_layouts))}. They share no chunk, and hit only what is in all of them where the "
            "processes do not show which workers are a scheduler's",
            "give the engines different model names",
        )
        for (model, world_size), chunk_layouts in layouts.items()
        if len(chunk_layouts) > 1
    ]


def _database(settings: Settings) -> list[CheckResult]:
    """Check the database, and whether other users can read its files."""
    from app.errors import StoreUnavailable
    from app.store import condition
    from app.store.base import private
    from app.store.base.database import Database

    name, shown, path = "database", without_password(settings.common.database_url), ""

    async def look() -> condition.DatabaseCondition | None:
        nonlocal path
        database = Database(settings.common.database_url)
        path = database.path
        try:
            if database.path and not os.path.exists(database.path):  # noqa: ASYNC240
                return None
            return await condition.look(database, whole=False)
        finally:
            await database.close()

    try:
        database_condition = asyncio.run(look())
    except (SettingsError, StoreUnavailable) as error:
        return [CheckResult(name, "failure", f"{shown}: {error}", "LARDER_DATABASE_URL, or start the database")]
    read_by_others = [
        CheckResult("database files", "warning", f"{file.path} has mode {file.mode}: others can read it", file.fix)
        for file in private.exposed(settings.state_dir, path)
        if file.path != str(settings.state_dir)  # has its own check
    ]
    return [_condition(name, shown, database_condition), *read_by_others]


def _condition(name: str, shown: str, database_condition: "DatabaseCondition | None") -> CheckResult:
    if database_condition is None:
        return CheckResult(name, "ok", f"{shown} will be made")
    if database_condition.faults:
        fix = "larder db upgrade, or larder db check"
        if database_condition.of_newer_release:
            fix = "start that release, or restore a backup that this one made"
        return CheckResult(name, "failure", f"{shown}: {database_condition.faults[0]}", fix)
    if abs(database_condition.clock_ahead_s) > CLOCKS_APART_S:
        apart = f"its clock and this machine's are {abs(database_condition.clock_ahead_s):.1f} s apart"
        return CheckResult(name, "warning", f"{shown}: {apart}", "run an NTP client on both")
    return CheckResult(name, "ok", f"{shown}, {database_condition.dialect}, at revision {database_condition.revision}")
