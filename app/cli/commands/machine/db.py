"""`larder db …`: commands that open the database directly, whether Larder is running or not."""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import click

from app.cli.support.printing.terminal import say
from app.settings import load
from dataplane.base.redaction import without_password
from dataplane.base.units import format_size


@click.group()
def db() -> None:
    """Upgrade, check, back up or restore the configured database."""


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

    url, database_condition = _with_database(work, must_exist=True)
    at = database_condition.revision or "no revision"
    newest = "the newest" if database_condition.at_head else f"the newest is {database_condition.head}"
    say(f"{url}: {database_condition.dialect}, at {at} ({newest})")
    for fault in database_condition.faults:
        say(f"  wrong: {fault}")
    if database_condition.faults:
        raise click.exceptions.Exit(1)
    say("  schema, tables and file are as they should be")


@db.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace an existing FILE.")
def backup(file: Path, force: bool) -> None:
    """Copy the database and the manager key to FILE while they are in use.

    FILE becomes a tar archive of mode 0600: the key in it authenticates to every node. `larder db restore` reads it."""
    from app.push import keys
    from app.store.base import backup as copies
    from app.store.base.database import full_url

    settings = load()
    key = keys.key_path(settings.state_dir, settings.app.curve_key_file)
    size = copies.backup(full_url(settings.common.database_url), file, force=force, keys=(key, keys.next_path(key)))
    key_note = f"and the manager key {key}; keep it secret" if key.exists() else "; there is no manager key yet"
    say(f"{file}: {format_size(size)}, the database {key_note}".replace(" ;", ";"))


@db.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--force", is_flag=True, help="Replace an existing database and manager key; the old ones are kept beside."
)
def restore(file: Path, force: bool) -> None:
    """Restore the database and the manager key from a backup, while no Larder runs.

    The backup is checked, and migrated if an older release made it. Works on SQLite; for Postgres, the command says
    what to run instead."""
    from app.cli.commands.machine.up import alone
    from app.push import keys
    from app.store import restore as restores
    from app.store.base import private
    from app.store.base.database import full_url
    from app.store.fleet.leader_lock import FileLeaderLock

    settings = load()
    key = keys.key_path(settings.state_dir, settings.app.curve_key_file)
    url = full_url(settings.common.database_url)
    if url.get_backend_name() != "sqlite":
        raise click.ClickException(f"this command restores SQLite only. For Postgres: {restores.POSTGRES_STEPS}")
    target = Path(url.database or "").absolute()
    with contextlib.suppress(OSError):  # the lock reports it
        private.make_folder(target.parent)
    lock = FileLeaderLock(str(target))
    with alone(settings):
        if asyncio.run(lock.take()) is None:
            raise click.ClickException(f"a Larder uses {target}: stop it first")
        try:
            done = restores.restore(file, target, key, force=force)
        finally:
            asyncio.run(lock.release())
    migrated = "" if done.from_revision == done.revision else f", migrated from {done.from_revision}"
    say(f"{done.database}: restored, at revision {done.revision}{migrated}")
    stays = f"{key} is unchanged" if key.exists() else "nodes of other machines must join again"
    say(f"manager key: {done.key}" if done.key else f"{file} has no manager key; {stays}")
    for path in done.kept:
        say(f"kept: {path}")


def _with_database(work: Any, *, must_exist: bool = False) -> tuple[str, Any]:
    """Return the database URL without its password, and the result of `work`. Raises ClickException, LarderError."""
    from app.store.base.database import Database

    database_url = load().common.database_url

    async def run() -> Any:
        database = Database(database_url)
        try:
            if must_exist and database.path and not os.path.isfile(database.path):  # noqa: ASYNC240
                raise click.ClickException(f"there is no database at {database.path}")
            return await work(database)
        finally:
            await database.close()

    return without_password(database_url), asyncio.run(run())
