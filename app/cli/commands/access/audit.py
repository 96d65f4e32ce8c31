"""`larder audit …`."""

import asyncio
import json
import os
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any

import click

from app.cli.support import show
from app.cli.support.client import call, every, json_option, print_json, stream, url_option
from app.cli.support.keys import seconds
from app.cli.support.lists import title
from app.cli.support.terminal import exact, say
from dataplane.base.settings import SettingsError

BROKEN = 3
"""Exit code of `verify` if the audit log was altered."""
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)


@click.group()
def audit() -> None:
    """Show, export and verify the audit log."""


@audit.command("list")
@click.option("--actor", help="Only of this actor.")
@click.option("--action", help="Only this action, such as create, update, delete.")
@click.option("--kind", help="Only about this: quota, pin, policy, token, …")
@click.option("--name", help="Only about the record of this name.")
@click.option("--denied", is_flag=True, help="Only what was refused.")
@click.option("--since", metavar="TIME", help="Only of the last 90s, 30m, 12h or 7d.")
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of items."
)
@url_option
@json_option
def list_audit(
    actor: str | None,
    action: str | None,
    kind: str | None,
    name: str | None,
    denied: bool,
    since: str | None,
    limit: int,
    url: str | None,
    as_json: bool,
) -> None:
    """Show the newest audit entries."""
    asked = {
        "actor": actor,
        "action": action,
        "kind": kind,
        "name": name,
        "decision": "denied" if denied else None,
        "since": None if since is None else str(time.time() - seconds("--since", since)),
    }
    answer = every(url, "/api/v1/audit", asked, limit)
    if as_json:
        print_json(answer)
        return
    rows = [
        [
            str(entry["id"]),
            _at(entry["at"]),
            entry["actor"] or "-",
            entry["source"] or "-",
            f"{entry['action']} {entry['kind']}".strip() or "-",
            entry["name"],
            entry["decision"]
            if entry["decision"] == "allowed"
            else f"{entry['decision']}: {entry['reason']}",
        ]
        for entry in answer["items"]
    ]
    show.table(title("Audit", answer), ["id ", "at", "actor", "from", "did", "name", "decision"], rows)


def _at(seconds_: float) -> str:
    """Return the time of an entry as text. A changed database may contain any number."""
    try:
        return datetime.fromtimestamp(seconds_, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if seconds_ else "-"
    except (OverflowError, ValueError, OSError):
        return str(seconds_)


@audit.command("export")
@url_option
def export(url: str | None) -> None:
    """Write the whole audit log to standard output as JSON lines, oldest first."""
    exact(stream(url, "/api/v1/audit/export", {}))


@audit.command("verify")
@click.option(
    "--expect",
    metavar="HASH",
    default="",
    help="The newest hash of an earlier verification: the log must still contain it.",
)
@click.option("--database", metavar="URL", help="Look into this database instead of asking a Larder.")
@click.option(
    "--file", "file", type=click.Path(dir_okay=False), help="Check an export instead; `-` for standard input."
)
@url_option
@json_option
def verify(expect: str, database: str | None, file: str | None, url: str | None, as_json: bool) -> None:
    """Check that no audit entry was changed, removed, moved or added. The exit code is 3 if one was."""
    expect = expect.strip().lower()
    if expect and _HASH.fullmatch(expect) is None:
        raise click.UsageError(f"--expect: expected a hash of 64 hex digits, got {expect[:80]!r}")
    if database is not None and file is not None:
        raise click.UsageError("expected at most one of --database and --file")
    if database is not None:
        result = asyncio.run(_of_database(database, expect))
    elif file is not None:
        result = _of_file(file, expect)
    else:
        result = call(url, "GET", "/api/v1/audit/verify", None, {"expect": expect})
    if as_json:
        print_json(result)
    elif result["intact"]:
        entries = "1 entry" if result["entries"] == 1 else f"{result['entries']} entries"
        say(f"intact: {entries}; the newest is {result['head_id']}, {result['head_hash']}")
        if result["entries"]:
            say(
                "keep this hash on another machine: who rewrites the whole log cannot pass the next verification, "
                f"larder audit verify --expect {result['head_hash']}"
            )
    else:
        say(f"not intact: {result['fault']}", err=True)
    if not result["intact"]:
        sys.exit(BROKEN)


async def _of_database(given: str, expect: str) -> dict[str, Any]:
    import msgspec
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    from app.errors import LarderError
    from app.services.access.audit import Audit
    from app.store.base.database import Database, full_url

    try:
        url = full_url(given)
        # Verifying must not create a missing database.
        if url.drivername.startswith("sqlite") and not os.path.isfile(url.database or ""):  # noqa: ASYNC240
            raise click.ClickException(f"the database cannot be read: there is no file {url.database!r}")
        database = Database(given)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    try:
        found: dict[str, Any] = msgspec.to_builtins(await Audit(database).verify(expect))
    except LarderError as error:
        raise click.ClickException(f"the database cannot be read: {error.message}") from None
    except DBAPIError as error:
        raise click.ClickException(f"the database cannot be read: {error.orig}") from None
    except (SQLAlchemyError, OSError) as error:
        raise click.ClickException(f"the database cannot be read: {error}") from None
    finally:
        await database.close()
    return found


def _of_file(file: str, expect: str) -> dict[str, Any]:
    import msgspec

    from app.schemas.access.audit import AuditEntry
    from app.services.access.audit import ChainVerification

    walk = ChainVerification(expect)
    try:
        with click.open_file(file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    walk.take([msgspec.convert(json.loads(line), AuditEntry)])
                except (ValueError, RecursionError) as error:
                    why = f": {error}" if isinstance(error, msgspec.ValidationError) else ""
                    walk.fault = f"line {number} is no entry of the audit{why}"
                    if not walk.entries and not any(map(_is_entry, lines)):
                        raise click.ClickException(f"{_named(file)} is no export of the audit") from None
                if walk.fault:
                    break
    except OSError as error:
        raise click.ClickException(f"{_named(file)} cannot be read: {error.strerror}") from None
    if not walk.entries and not walk.fault:
        raise click.ClickException(f"{_named(file)}: expected entries, got none")
    walk.end(walk.last_id, walk.last_hash)
    found: dict[str, Any] = msgspec.to_builtins(walk.result())
    return found


def _is_entry(line: bytes) -> bool:
    """Return whether a line has the fields of an entry, altered or not."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and {"id", "at", "actor", "action", "hash"} <= told.keys()


def _named(file: str) -> str:
    return "standard input" if file == "-" else file
