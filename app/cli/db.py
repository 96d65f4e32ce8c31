"""`larder db …`: on the database itself, whether a Larder runs on it or not."""

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from app.cli.terminal import say
from app.settings import load
from dataplane.protocol.settings import SettingsError, without_password
from dataplane.protocol.units import format_size


@click.group()
def db() -> None:
    """The database of the settings: upgrade it, check it, copy it."""


@db.command()
def upgrade() -> None:
    """Run the migrations that are missing; `larder up` does the same at its start."""
    from app.store import condition, migrate
    from app.store.database import Database

    async def work(database: Database) -> str:
        try:
            await migrate.upgrade(database)
        except migrate.NewerSchema as error:
            raise click.ClickException(f"the database cannot be upgraded: {error}") from None
        return (await condition.look(database, whole=False)).revision

    url, revision = _with_database(work)
    say(f"{url}: at revision {revision}")


@db.command()
def check() -> None:
    """Say where the schema is and whether the database is whole. Exit code 1 when something is wrong."""
    from app.store import condition
    from app.store.database import Database

    async def work(database: Database) -> condition.Condition:
        return await condition.look(database, whole=True)

    url, found = _with_database(work, must_exist=True)
    at = found.revision or "no revision"
    newest = "the newest" if found.at_head else f"the newest is {found.head}"
    say(f"{url}: {found.dialect}, at {at} ({newest})")
    for fault in found.faults:
        say(f"  wrong: {fault}")
    if found.faults:
        raise click.exceptions.Exit(1)
    say("  schema, tables and file are as they should be")


@db.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace the file when it is there.")
def backup(file: Path, force: bool) -> None:
    """Copy the database to FILE while it is in use: an SQLite file, or for Postgres what pg_restore reads."""
    from app.errors import LarderError
    from app.store import backup as copies
    from app.store.database import full_url

    try:
        size = copies.backup(full_url(_given()), file, force=force)
    except (LarderError, SettingsError) as error:
        raise click.ClickException(str(error)) from None
    say(f"{file}: {format_size(size)}")


def _given() -> str:
    try:
        return load().common.database_url
    except SettingsError as error:
        raise click.ClickException(str(error)) from None


def _with_database(work: Any, *, must_exist: bool = False) -> tuple[str, Any]:
    """The URL for people, and what the work found. Raises ClickException."""
    from app.errors import LarderError
    from app.store.database import Database

    given = _given()

    async def run() -> Any:
        database = Database(given)
        try:
            if must_exist and database.path and not os.path.isfile(database.path):  # noqa: ASYNC240
                raise click.ClickException(f"there is no database at {database.path}")
            return await work(database)
        finally:
            await database.close()

    try:
        return without_password(given), asyncio.run(run())
    except (LarderError, SettingsError) as error:
        raise click.ClickException(str(error)) from None
