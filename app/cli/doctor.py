"""`larder doctor`."""

import asyncio
import os
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import msgspec

from app.cli import gpus, machine, show
from app.cli.client import print_json
from app.cli.machine import Found
from app.settings import Settings, load
from dataplane.protocol.settings import SettingsError, without_password

if TYPE_CHECKING:  # the real import takes as long as all the checks
    from app.store.condition import Condition

CLOCKS_APART_S = 2.0
_MARKS = {"ok": "ok", "warning": "warning", "failure": "FAILURE"}


@click.command()
@click.option(
    "--config", type=click.Path(dir_okay=False), help="Settings file; default LARDER_CONFIG, ./larder.toml."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(config: str | None, as_json: bool) -> None:
    """Look at this machine and say what to mend. Changes nothing. Exit code 1 when something will not work."""
    if config is not None:
        os.environ["LARDER_CONFIG"] = config
    found = _look(config)
    failed = any(each.state == "failure" for each in found)
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(each) for each in found]})
    else:
        rows = [[_MARKS[each.state], each.name, each.message, each.fix] for each in found]
        show.table("This machine", ["", "what", "found", "to mend it"], rows)
    if failed:
        raise click.exceptions.Exit(1)


def _look(config: str | None) -> list[Found]:
    try:
        settings = load(config)
    except SettingsError as error:
        return [Found("settings", "failure", str(error), "see docs/settings.md")]
    plane, found = _data_plane()
    runs = machine.runs_here(settings.state_dir)
    pool_bytes = int(plane.get("pool_bytes") or settings.common.pool_bytes or 0)
    table = plane.get("dataplane")
    table = table if isinstance(table, dict) else {}
    checked = list(machine.checks(settings, table, pool_bytes, runs=runs))
    tried = gpus.look(checked)
    on_gpus = gpus.replicas(int(table.get("gpu_pool_bytes", 0)), [*checked, *tried])
    return [found, *checked, *tried, *on_gpus, *_database(settings)]


def _data_plane() -> tuple[dict[str, Any], Found]:
    """Its settings in force, and whether they are right: it reads them itself."""
    command = [sys.executable, "-m", "dataplane", "--print-config"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode:
        lines = told.stderr.strip().splitlines() or [f"exit code {told.returncode}"]
        return {}, Found("settings", "failure", lines[-1][:400], "see docs/settings.md")
    try:
        plane = msgspec.json.decode(told.stdout, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}, Found(
            "settings", "failure", "the data plane does not tell its settings", "install Larder again"
        )
    file = os.environ.get("LARDER_CONFIG") or ("larder.toml" if os.path.isfile("larder.toml") else "")
    return plane, Found(
        "settings", "ok", f"{file} and the environment" if file else "the environment; no file"
    )


def _database(settings: Settings) -> list[Found]:
    """How it is, and whether others can read its file."""
    from app.errors import StoreUnavailable
    from app.store import condition, private
    from app.store.database import Database

    name, shown, path = "database", without_password(settings.common.database_url), ""

    async def look() -> condition.Condition | None:
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
        found = asyncio.run(look())
    except (SettingsError, StoreUnavailable) as error:
        return [Found(name, "failure", f"{shown}: {error}", "LARDER_DATABASE_URL, or start the database")]
    read_by_others = [
        Found("database files", "warning", f"{each.path} has mode {each.mode}: others can read it", each.fix)
        for each in private.exposed(settings.state_dir, path)
        if each.path != str(settings.state_dir)  # has a check of its own
    ]
    return [_condition(name, shown, found), *read_by_others]


def _condition(name: str, shown: str, found: "Condition | None") -> Found:
    if found is None:
        return Found(name, "ok", f"{shown} will be made")
    if found.faults:
        fix = "larder db upgrade, or larder db check"
        if found.of_newer_release:
            fix = "start that release, or restore a backup that this one made"
        return Found(name, "failure", f"{shown}: {found.faults[0]}", fix)
    if abs(found.clock_ahead_s) > CLOCKS_APART_S:
        apart = f"its clock and this machine's are {abs(found.clock_ahead_s):.1f} s apart"
        return Found(name, "warning", f"{shown}: {apart}", "run an NTP client on both")
    return Found(name, "ok", f"{shown}, {found.dialect}, at revision {found.revision}")
