"""`larder db …`: commands that open the database directly, whether Larder is running or not."""

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from app.cli.support.terminal import say
from app.settings import load
from dataplane.base.settings import SettingsError, without_password
from dataplane.base.units import format_size


@click.group()
def db() -> None:
    """Upgrade, check or back up the configured database."""


@db.command()
def upgrade() -> None:
    """Run pending migrations. `larder up` does the same when it starts."""
    from app.store import condition
    from app.store.base import migrate
    from app.store.base.database import Database

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
    """Show the revision of the schema and check the integrity of the database. The exit code is 1 if a fault is
    found."""
    from app.store import condition
    from app.store.base.database import Database

    async def work(database: Database) -> condition.DatabaseCondition:
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
    """Copy the database to FILE while it is in use. FILE becomes an SQLite database, or for Postgres an archive for
    pg_restore."""
    from app.errors import LarderError
    from app.store.base import backup as copies
    from app.store.base.database import full_url

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
    """Return the database URL without its password, and the result of `work`. Raises ClickException."""
    from app.errors import LarderError
    from app.store.base.database import Database

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
