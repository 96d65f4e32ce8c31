"""Output formats of commands that show something: `-o table|wide|json|yaml|name`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from app.cli.support.api.client import print_json
from app.cli.support.keys import F
from app.cli.support.printing.table import Column, table
from app.cli.support.printing.terminal import exact, say

FORMATS = ("table", "wide", "json", "yaml", "name")


@dataclass(frozen=True)
class Output:
    format: str = "table"

    @property
    def wide(self) -> bool:
        return self.format == "wide"

    @property
    def for_programs(self) -> bool:
        return self.format in ("json", "yaml")

    def data(self, answer: Any, names: Sequence[str] | str = ()) -> bool:
        """Print the answer if the format is for programs, and return whether it is. `names` are the lines of
        `-o name`."""
        if self.format == "json":
            print_json(answer)
        elif self.format == "yaml":
            print_yaml(answer)
        elif self.format == "name":
            for name in [names] if isinstance(names, str) else names:
                say(name)
        else:
            return False
        return True

    def listing(
        self,
        noun: str,
        answer: Mapping[str, Any],
        columns: Sequence[Column],
        key: str | Callable[[Any], str],
        hint: str = "--limit",
    ) -> bool:
        """Print a list of the API as a table with a title; the last line says how many items a limit left out. `key`
        is the field that names an item. Return whether a table was printed."""
        items = answer["items"]
        if self.data(answer, [key(item) if callable(key) else str(item[key]) for item in items]):
            return False
        total = answer.get("total", len(items))
        count = f"{total:,}" if len(items) == total else f"{len(items):,} of {total:,}"
        table(f"{noun} ({count})", columns, items, wide=self.wide)
        if more := total - len(items):
            say(f"{more:,} more; {hint} N shows more of them")
        return True

    def record(self, record: Mapping[str, Any], columns: Sequence[Column], name: str) -> None:
        """Print one record: a row in a table, or in full in the other formats."""
        if not self.data(record, name):
            table("", columns, [record], wide=self.wide)


def _keep(ctx: click.Context, param: click.Parameter, value: str | None) -> Output:
    as_json = bool(ctx.meta.get("larder.json"))
    if as_json and value not in (None, "json"):
        raise click.UsageError("expected at most one of --json and --output")
    return Output("json" if as_json else value or "table")


def _keep_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta["larder.json"] = value


def output_option(command: F) -> F:
    """Add `-o/--output` and its shorthand `--json`; the command gets `output`."""
    for option in (
        click.option(
            "--json", is_flag=True, expose_value=False, is_eager=True, callback=_keep_json, help="The same as -o json."
        ),
        click.option(
            "-o", "--output", type=click.Choice(FORMATS), callback=_keep, help="Output format; default table."
        ),
    ):
        command = option(command)
    return command


def print_yaml(answer: Any) -> None:
    import yaml

    exact([yaml.safe_dump(answer, sort_keys=False, allow_unicode=True).encode()])
