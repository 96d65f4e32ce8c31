"""`larder audit …`: list the entries of the audit log, verify its chain of hashes, and export it."""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from app.cli.support.api.client import call, stream, url_option
from app.cli.support.keys import seconds
from app.cli.support.printing.terminal import Column, exact, say
from app.cli.support.resources.documents import value_text
from app.cli.support.resources.options import Noun, Output, limit_of, request_options
from app.cli.support.resources.verbs import Resource, add_list

BROKEN = 3
"""Exit code of `verify` if the audit log was altered."""
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)


def _at(entry: Mapping[str, Any]) -> str:
    """Return the time of an entry as text, without this year. A tampered database may contain any number."""
    at = entry["at"]
    try:
        then = datetime.fromtimestamp(at, UTC)
        year = "" if then.year == datetime.now(UTC).year else "%Y-"
        return then.strftime(f"{year}%m-%d %H:%M:%SZ") if at else "-"
    except (OverflowError, ValueError, OSError):
        return str(at)


def _outcome(entry: Mapping[str, Any]) -> str:
    """Return why a request was refused, or the fields that an update changed, such as `limit_bytes 8 GiB -> 1 GiB`. A
    tampered database may contain anything."""
    decision = str(entry["decision"])
    if decision != "allowed":
        return f"{decision}: {entry['reason']}"
    before, after = entry["before"], entry["after"]
    if entry["action"] != "update" or not isinstance(before, dict) or not isinstance(after, dict):
        return ""
    try:
        return ", ".join(
            f"{name} {value_text(name, before.get(name))} -> {value_text(name, value)}"
            for name, value in after.items()
            if value != before.get(name)
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return "cannot be read"


_COLUMNS = (
    Column("id", lambda entry: str(entry["id"]), right=True),
    Column("at", _at),
    Column("actor", lambda entry: entry["actor"] or "-"),
    Column("from", lambda entry: entry["source"] or "-", wide=True),
    Column("action", lambda entry: f"{entry['action']} {entry['kind']}".strip() or "-"),
    Column("name", lambda entry: entry["name"]),
    Column("outcome", _outcome, text=True),
)


def _query(options: dict[str, Any]) -> dict[str, Any]:
    denied, since = options.pop("denied"), options.pop("since")
    return {
        **options,
        "decision": "denied" if denied else None,
        "since": None if since is None else str(time.time() - seconds("--since", since)),
    }


audit = Noun("audit", help="Show, export and verify the audit log.")
add_list(
    audit,
    Resource("/api/v1/audit", "entry", _COLUMNS, "id"),
    "List audit entries, newest first.",
    click.option("--actor", help="Only this actor."),
    click.option("--action", help="Only this action, such as create, update, delete."),
    click.option("--kind", help="Only this kind: quota, pin, policy, tier, token, …"),
    click.option("--name", help="Only records of this name."),
    click.option("--denied", is_flag=True, help="Only refusals."),
    click.option("--since", metavar="TIME", help="Only the last 90s, 30m, 12h or 7d."),
    limit_of(50),
    pages=True,
    query=_query,
)


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
@click.option("--database", metavar="URL", help="Verify this database instead of the log of a running Larder.")
@click.option(
    "--file", "file", type=click.Path(dir_okay=False), help="Verify an export instead; `-` for standard input."
)
@request_options
def verify(expect: str, database: str | None, file: str | None, url: str | None, output: Output) -> None:
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
    if output.data(result, result["head_hash"]):
        pass
    elif result["intact"]:
        entries = "1 entry" if result["entries"] == 1 else f"{result['entries']} entries"
        say(f"intact: {entries}; the newest is {result['head_id']}, {result['head_hash']}")
        if result["entries"]:
            say(
                "keep this hash on another machine: a log that was rewritten as a whole does not pass the next "
                f"verification, larder audit verify --expect {result['head_hash']}"
            )
    else:
        say(f"not intact: {result['fault']}", err=True)
    if not result["intact"]:
        sys.exit(BROKEN)


async def _of_database(database_url: str, expect: str) -> dict[str, Any]:
    import msgspec
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    from app.errors import LarderError
    from app.services.access.audit import Audit
    from app.store.base.database import Database, full_url

    url = full_url(database_url)
    # Verifying must not create a missing database.
    if url.drivername.startswith("sqlite") and not os.path.isfile(url.database or ""):  # noqa: ASYNC240
        raise click.ClickException(f"the database cannot be read: there is no file {url.database!r}")
    database = Database(database_url)
    try:
        verified: dict[str, Any] = msgspec.to_builtins(await Audit(database).verify(expect))
    except LarderError as error:
        raise click.ClickException(f"the database cannot be read: {error.message}") from None
    except DBAPIError as error:
        raise click.ClickException(f"the database cannot be read: {error.orig}") from None
    except (SQLAlchemyError, OSError) as error:
        raise click.ClickException(f"the database cannot be read: {error}") from None
    finally:
        await database.close()
    return verified


def _of_file(file: str, expect: str) -> dict[str, Any]:
    import msgspec

    from app.schemas.access.audit import AuditEntry
    from app.services.access.audit import ChainVerification

    walk = ChainVerification(expect)
    try:
        with click.open_file(file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    walk.take(msgspec.convert(json.loads(line), AuditEntry))
                except (ValueError, RecursionError) as error:
                    reason = f": {error}" if isinstance(error, msgspec.ValidationError) else ""
                    walk.fault = f"line {number} is not an audit entry{reason}"
                    if not walk.entries and not any(map(_is_entry, lines)):
                        raise click.ClickException(f"{_named(file)} is not an export of the audit log") from None
                if walk.fault:
                    break
    except OSError as error:
        raise click.ClickException(f"{_named(file)} cannot be read: {error.strerror}") from None
    if not walk.entries and not walk.fault:
        raise click.ClickException(f"{_named(file)}: expected entries, got none")
    walk.end(walk.last_id, walk.last_hash)
    verified: dict[str, Any] = msgspec.to_builtins(walk.result())
    return verified


def _is_entry(line: bytes) -> bool:
    """Return whether a line has the fields of an entry, whether altered or not."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and {"id", "at", "actor", "action", "hash"} <= entry.keys()


def _named(file: str) -> str:
    return "standard input" if file == "-" else file
