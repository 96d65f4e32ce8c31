"""Documents for `diff` and `apply`: read them, send them, and print the answer."""

import os
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from app.cli.support.api.client import ApiError, call
from app.cli.support.exit_codes import worded
from app.cli.support.keys import together
from app.cli.support.printing.show import tier_shares
from app.cli.support.printing.terminal import say
from dataplane.base.units import format_exact_size
from dataplane.base.visible import is_plain

MAX_FAULTS = 50
_SUFFIXES = (".yaml", ".yml", ".json")
_SIGNS = {"create": ("+", "green"), "update": ("~", "yellow"), "delete": ("-", "red"), "ended": ("=", "cyan")}


def _of_folders(ctx: click.Context, parameter: click.Parameter, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names with each folder replaced by its documents, sorted by name. Raises ClickException."""
    return tuple(name for path in paths for name in (_documents_in(path) if os.path.isdir(path) else [path]))


def _documents_in(folder: str) -> list[str]:
    try:
        files = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(_SUFFIXES)]
    except OSError as error:
        raise click.ClickException(f"{folder}: {error.strerror}") from None
    if not files:
        raise click.ClickException(f"{folder}: expected files that end in {', '.join(_SUFFIXES)}")
    return files


document_options = together(
    click.option(
        "-f", "--file", "files", metavar="FILE", multiple=True, required=True, callback=_of_folders,
        help="Document in YAML or JSON, or a folder of them; - is standard input. May be repeated.",
    ),
    click.option("--prune", is_flag=True, help="Delete the owner's records that are not in the files."),
    click.option("--managed-by", metavar="NAME", default="", help="Owner, if the document names none."),
    click.option("--take-over", is_flag=True, help="Take over records of other owners, and records without one."),
)  # fmt: skip
"""Adds the options that `diff` and `apply` have in common."""


def read_files(files: Sequence[str]) -> list[str]:
    """Return the texts of the files. Raises ClickException."""
    if files.count("-") > 1:
        raise click.UsageError("expected - once: there is one standard input")
    return [_read(name) for name in files]


def _read(name: str) -> str:
    try:
        if name == "-":
            return sys.stdin.buffer.read().decode()
        with open(name, "rb") as file:
            return file.read().decode()
    except OSError as error:
        raise click.ClickException(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{name}: not UTF-8 at byte {error.start}") from None


def send(url: str | None, files: Sequence[str], texts: list[str], wait: str | None = None, **options: Any) -> Any:
    """Apply the documents and return the answer. Raises ClickException with every fault and the file that it is in."""
    body = {"document": texts[0] if len(texts) == 1 else texts, **options}
    try:
        return call(url, "POST", "/api/v1/apply", body, {"wait": wait})
    except ApiError as refused:
        if not refused.errors:
            raise
        faults = [f"{_place(error['path'], files)}: {error['message']}" for error in refused.errors]
        if len(faults) > MAX_FAULTS:
            faults[MAX_FAULTS:] = [f"and at least {len(faults) - MAX_FAULTS} more"]
        raise worded(refused, "\n  ".join(["nothing was changed:", *faults])) from None


def _place(path: str, files: Sequence[str]) -> str:
    """Return the path of a fault, preceded by the name of its file."""
    if len(files) == 1:
        return f"{files[0]}: {path}" if path != "document" else files[0]
    for number, name in enumerate(files):
        start = f"document[{number}]"
        if path.startswith(start):
            inner_path = path[len(start) :].lstrip(".")
            return f"{name}: {inner_path}" if inner_path else name
    return path


def print_changes(answer: dict[str, Any]) -> None:
    """Print every record that changes, in colour on a terminal."""
    for text, style in _lines(answer["records"]):
        say(text, **style)


def _lines(records: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line with its style for click."""
    kind = ""
    for record in records:
        if record["action"] == "unchanged":
            continue
        if record["type"] != kind:
            kind = record["type"]
            yield kind, {"bold": True}
        sign, colour = _SIGNS[record["action"]]
        owner = f" ({record['managed_by']})" if record["managed_by"] else ""
        ended = ": has expired and is not created" if record["action"] == "ended" else ""
        yield f"  {sign} {record['name']}{owner}{ended}", {"fg": colour}
        for name, change in record["fields"].items():
            before, after = change["before"], change["after"]
            if record["action"] == "update":
                yield f"      {name}: {value_text(name, before)} -> {value_text(name, after)}", {}
            elif record["action"] == "create" and after not in (None, "", {}) and name != "managed_by":
                yield f"      {name}: {value_text(name, after)}", {}


def counted(answer: dict[str, Any]) -> str:
    """Return `1 created, 2 updated, 0 deleted, 5 unchanged`; for a dry run `1 to create`, and so on."""
    if answer["dry_run"]:
        results = ("to create", "to update", "to delete")
    else:
        results = ("created", "updated", "deleted")
    parts = [f"{answer[key]} {word}" for key, word in zip(("created", "updated", "deleted"), results, strict=True)]
    return ", ".join([*parts, f"{answer['unchanged']} unchanged"])


def is_drift(answer: dict[str, Any]) -> bool:
    """Return whether the answer contains changes, done or planned."""
    return bool(answer["created"] or answer["updated"] or answer["deleted"])


def as_written(name: str, value: Any) -> Any:
    """Return the value of a record's field in the form in which operators write it, such as `256 MiB`."""
    if name.endswith("_bytes") and isinstance(value, int):
        text = format_exact_size(value)
        return text if value and not text.endswith("bytes") else value
    if name == "expires_at" and isinstance(value, float):
        try:
            return datetime.fromtimestamp(value, UTC).isoformat()
        except (OverflowError, ValueError, OSError):
            return value
    if name == "tiers" and isinstance(value, dict):
        return {tier: {key: as_written(key, amount) for key, amount in share.items()} for tier, share in value.items()}
    return value


def value_text(name: str, value: Any) -> str:
    """Return the value of a record's field as a document shows it."""
    if value is None:
        return "none"
    if name.endswith("_bytes") and isinstance(value, int):
        return format_exact_size(value)
    if name == "expires_at":
        try:
            return datetime.fromtimestamp(value, UTC).isoformat(timespec="seconds")
        except (OverflowError, ValueError, OSError):
            return str(value)
    if name == "tiers" and isinstance(value, dict):
        return tier_shares(value, format_exact_size)
    if isinstance(value, dict):
        return ", ".join(f"{label}={value_text(label, part)}" for label, part in sorted(value.items())) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return repr(value) if value == "" or (isinstance(value, str) and not is_plain(value)) else str(value)
