"""Groups, options and output formats of commands that show or list something."""

import functools
import io
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from app.cli.support.api.client import print_json, url_option
from app.cli.support.exit_codes import NodesFailed
from app.cli.support.keys import F, together
from app.cli.support.printing.terminal import Column, exact, is_terminal, say, table


class Noun(click.Group):
    """A group whose name alone means `list`, with the options of `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing and not args:  # a shell completes what follows the noun
            return super().parse_args(ctx, args)
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands, and the options of `list`, which a noun alone takes."""
        items = super().shell_complete(ctx, incomplete)
        listing = self.commands.get("list")
        if listing is not None and incomplete.startswith("-"):
            with listing.make_context("list", [], parent=ctx, resilient_parsing=True) as inner:
                values = {item.value for item in items}
                items += [item for item in listing.shell_complete(inner, incomplete) if item.value not in values]
        return items

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if "list" in self.commands:
            formatter.write_paragraph()
            formatter.write_text("Without a command, 'list' is run.")


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
        """Print a list of the API as a table with a title; the last line says how many items a limit left out, if the
        API counts them. `key` is the field that names an item. Return whether a table was printed."""
        items = answer["items"]
        if self.data(answer, [key(item) if callable(key) else str(item[key]) for item in items]):
            return False
        total = answer.get("total", len(items))
        count = f"{total:,}" if len(items) == total else f"{len(items):,} of {total:,}"
        table(f"{noun} ({count})", columns, items, wide=self.wide)
        if omitted := total - len(items):
            say(f"{omitted:,} more; {hint} N shows more of them")
        elif answer.get("next_cursor"):
            say(f"there are more: {hint} N shows them")
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


output_option = together(
    click.option("-o", "--output", type=click.Choice(FORMATS), callback=_keep, help="Output format; default table."),
    click.option(
        "--json", is_flag=True, expose_value=False, is_eager=True, callback=_keep_json, help="The same as -o json."
    ),
)
"""Adds `-o/--output` and its shorthand `--json`; the command gets `output`."""

request_options = together(url_option, output_option)
"""Adds the options of both; the command gets `url` and `output`."""
_OF_REQUESTS = ("url", "context", "timeout", "output", "json")


def check_combined(mode: str, *used: str) -> None:
    """Raise UsageError for options that the running command was given and that it ignores with the option `mode`:
    those that are neither named in `used` nor of `request_options`."""
    context = click.get_current_context()
    ignored = [
        parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name not in (*used, *_OF_REQUESTS)
        and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        and not _is_other_flag(parameter, context)
    ]
    if ignored:
        raise click.UsageError(f"{mode} cannot be combined with {', '.join(ignored)}")


def _is_other_flag(parameter: click.Parameter, context: click.Context) -> bool:
    """Return whether another one of the flags of a parameter, each with its value, was given."""
    if not isinstance(parameter, click.Option) or not parameter.is_flag or parameter.is_bool_flag:
        return False
    return bool(parameter.flag_value != context.params.get(parameter.name or ""))


def print_yaml(answer: Any) -> None:
    import yaml

    exact([yaml.safe_dump(answer, sort_keys=False, allow_unicode=True).encode()])


POLL_S = 2.0
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


class _Frame(io.TextIOWrapper):
    """Collects what a command prints, as if it went to the real output."""

    def __init__(self, real: Any) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self._real = real

    def isatty(self) -> bool:
        return bool(self._real.isatty())

    def text(self) -> str:
        self.flush()
        return cast(io.BytesIO, self.buffer).getvalue().decode()


def watch_option(command: F) -> F:
    """Add `--watch`. A terminal is redrawn; elsewhere the lines that are new are appended. Nodes that fail do not end
    it."""

    @click.option("--watch", "-w", is_flag=True, help="Show the list again whenever it changes.")
    @functools.wraps(command)
    def watched(*args: Any, watch: bool, **kwargs: Any) -> None:
        if not watch:
            command(*args, **kwargs)
            return
        output = kwargs.get("output", Output())
        before = failed_before = ""
        while True:
            frame, failed = _Frame(sys.stdout), ""
            with redirect_stdout(frame):
                try:
                    command(*args, **kwargs)
                except NodesFailed as error:
                    failed = error.message
            text = frame.text()
            if (text, failed) != (before, failed_before):
                sys.stdout.write(_CLEAR + text if is_terminal() else _added(before, text, output.for_programs))
                sys.stdout.flush()
                if failed:
                    say(failed, err=True)
            before, failed_before = text, failed
            time.sleep(POLL_S)

    return cast(F, watched)


def repeat_options(command: F) -> F:
    """Add `--once` and `--count`, for scripts, which show the list once or N times, even if it does not change."""

    @click.option("--once", is_flag=True, help="Show the list once, which is the default.")
    @click.option("--count", type=click.IntRange(min=1), help="Show the list this many times, then end.")
    @click.option(
        "--interval",
        type=click.FloatRange(min=0.1, max=3600.0),
        default=POLL_S,
        show_default=True,
        help="Seconds between the lists that --count shows.",
    )
    @functools.wraps(command)
    def repeated(*args: Any, once: bool, count: int | None, interval: float, **kwargs: Any) -> None:
        if once and count is not None:
            raise click.UsageError("expected at most one of --once and --count")
        for number in range(count or 1):
            if number:
                sys.stdout.flush()
                time.sleep(interval)
            command(*args, **kwargs)

    return cast(F, repeated)


def _added(before: str, text: str, is_document: bool) -> str:
    """Return the lines that are not in the text before; the whole text if it is JSON or YAML."""
    if is_document:
        return text
    lines = set(before.splitlines())
    return "".join(f"{line}\n" for line in text.splitlines() if line not in lines)


limit_option = click.option("--limit", type=click.IntRange(1), help="Maximum number of items; default all.")
cursor_option = click.option(
    "--cursor", metavar="TEXT", help="Position to continue from: `next_cursor` of the JSON of a list with --limit."
)
sort_option = click.option(
    "--sort", metavar="FIELD", help="Field of the JSON to sort by; with - in front for descending."
)
owner_option = click.option("--managed-by", metavar="NAME", help="Only records of this owner.")

unasked_option = click.option("--yes", is_flag=True, expose_value=False, help="Do not ask for confirmation.")
paged = together(sort_option, limit_option, cursor_option)
"""Adds `--sort`, `--limit` and `--cursor`."""


def limit_of(default: int, maximum: int | None = None) -> Callable[[F], F]:
    """Return a decorator that adds `--limit` to a list that is long."""
    return click.option(
        "--limit", type=click.IntRange(1, maximum), default=default, show_default=True, help="Maximum number of items."
    )


NONE = "none"

selector_option = click.option(
    "--selector",
    metavar="LABEL=VALUE",
    multiple=True,
    help="Apply to nodes with this label only; may be repeated. `none`: all nodes.",
)


def selector(pairs: tuple[str, ...]) -> dict[str, str] | None:
    """Return the labels of the option; None if it is not given, empty for all nodes. Raises UsageError."""
    if pairs == (NONE,):
        return {}
    if any("=" not in pair for pair in pairs):
        raise click.UsageError("expected --selector LABEL=VALUE, or none alone")
    return dict(pair.partition("=")[::2] for pair in pairs) or None


def reach(labels: Mapping[str, str] | None, everywhere: str = "all") -> str:
    """Return the nodes that a record selects, as text."""
    return everywhere if labels is None else ",".join(f"{name}={value}" for name, value in labels.items())
