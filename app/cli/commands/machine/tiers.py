"""`larder tiers check`, `repair` and `usage`: they open the directories of a disk tier while no node uses them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

from app.cli.support.exit_codes import NothingFound
from app.cli.support.keys import F
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say, table
from app.cli.support.resources.options import Output, output_option

R = TypeVar("R")
_CHECKED = (
    Column("directory", lambda contents: contents.directory),
    Column("node", lambda contents: contents.node, drop=2),
    Column("segments", lambda contents: f"{contents.segments:,}", right=True, drop=3),
    Column("size", lambda contents: show.size(contents.segment_bytes), right=True, drop=3),
    Column("blocks", lambda contents: f"{contents.blocks:,}", right=True),
    Column("stored", lambda contents: show.size(contents.stored_bytes), right=True, drop=1),
    Column("faults", lambda contents: f"{len(contents.faults):,}", right=True),
    Column("journal", lambda contents: contents.journal or "ok", text=True, drop=4),
)
_FAULTS = (
    Column("directory", lambda row: row[0], drop=1),
    Column("segment", lambda row: row[1].segment),
    Column("slot", lambda row: "all" if row[1].slot is None else str(row[1].slot), right=True),
    Column("fault", lambda row: row[1].reason, text=True, wraps=True),
)
_SUMS = (
    Column("blocks", lambda total: f"{total['blocks']:,}", right=True),
    Column("stored", lambda total: show.size(total["stored_bytes"]), right=True),
)
_TENANTS = (Column("tenant", lambda total: total["tenant"] or '""'), *_SUMS)
_SIZES = (Column("slot size", lambda total: show.size(total["slot_bytes"]), right=True), *_SUMS)


def _directories(command: F) -> F:
    return click.argument("directories", metavar="DIRECTORY...", nargs=-1, required=True)(command)


@click.command()
@_directories
@output_option
def check(directories: tuple[str, ...], output: Output) -> None:
    """Read all blocks of directories and compare them with their checksums.

    Nothing is changed. The exit code is 1 if a slot or a segment is bad."""
    from dataplane.tiers.disk import offline

    results = _by_directory(offline.check, directories)
    _report(results, output, "faults")
    if any(result.faults for result in results):
        raise click.exceptions.Exit(1)


@click.command()
@_directories
@output_option
def repair(directories: tuple[str, ...], output: Output) -> None:
    """Free bad slots of directories, delete orphaned segments and write the journals again.

    The blocks in them are lost; engines compute them again."""
    from dataplane.tiers.disk import offline

    _report(_by_directory(offline.repair, directories), output, "repaired")


@click.command()
@_directories
@output_option
def usage(directories: tuple[str, ...], output: Output) -> None:
    """Show how much of directories each tenant and each block size takes."""
    from dataplane.tiers.disk import offline

    usages = _by_directory(offline.usage, directories)
    tenants = _summed("tenant", [usage.tenants for usage in usages])
    sizes = _summed("slot_bytes", [usage.sizes for usage in usages])
    files = sum(usage.segment_bytes for usage in usages)
    answer = {"segment_bytes": files, "tenants": tenants, "sizes": sizes, "directories": msgspec.to_builtins(usages)}
    if not output.data(answer, [row["tenant"] for row in tenants]):
        table(f"Tenants ({len(tenants):,})", _TENANTS, tenants, wide=output.wide)
        say()
        table(f"Sizes ({len(sizes):,})", _SIZES, sizes, wide=output.wide)
        say()
        say(f"{show.size(files)} in segment files")


def _by_directory(work: Callable[[str], R], directories: Sequence[str]) -> list[R]:
    """Return the results. Raises ClickException for the first directory that cannot be used."""
    from dataplane.tiers.disk.offline import NoTierDirectory
    from dataplane.tiers.tier import TierError

    results = []
    for directory in directories:
        try:
            results.append(work(directory))
        except NoTierDirectory as error:
            raise NothingFound(str(error)) from None
        except TierError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(f"{directory}: {error.strerror}") from None
    return results


def _report(results: Sequence[Any], output: Output, noun: str) -> None:
    faults = [(result.directory, fault) for result in results for fault in result.faults]
    answer = {"ok": not faults, "directories": msgspec.to_builtins(results)}
    fault_names = [
        f"{directory}/{fault.segment}" + ("" if fault.slot is None else f":{fault.slot}") for directory, fault in faults
    ]
    if output.data(answer, fault_names):
        return
    table("", _CHECKED, results, wide=output.wide)
    if faults:
        say()
        table(f"{noun.capitalize()} ({len(faults):,})", _FAULTS, faults, wide=output.wide)


def _summed(key: str, parts: Sequence[dict[Any, Any]]) -> list[dict[str, Any]]:
    """Add up the directories, the largest first."""
    sums: dict[Any, dict[str, Any]] = {}
    for part in parts:
        for name, part_usage in part.items():
            total = sums.setdefault(name, {key: name, "blocks": 0, "stored_bytes": 0})
            total["blocks"] += part_usage.blocks
            total["stored_bytes"] += part_usage.stored_bytes
    return sorted(sums.values(), key=lambda total: (-total["stored_bytes"], str(total[key])))
