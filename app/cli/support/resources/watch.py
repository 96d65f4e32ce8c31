"""`--watch` of lists: show them again when they change."""

import functools
import io
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, TypeVar, cast

import click

from app.cli.support.printing.terminal import is_terminal
from app.cli.support.resources.output import Output

F = TypeVar("F", bound=Callable[..., Any])
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
    """Add `--watch`. A terminal is redrawn; elsewhere the lines that are new are appended."""

    @click.option("--watch", "-w", is_flag=True, help="Show the list again whenever it changes.")
    @functools.wraps(command)
    def watched(*args: Any, watch: bool, **kwargs: Any) -> None:
        if not watch:
            command(*args, **kwargs)
            return
        output = kwargs.get("output", Output())
        before = ""
        while True:
            frame = _Frame(sys.stdout)
            with redirect_stdout(frame):
                command(*args, **kwargs)
            text = frame.text()
            if text != before:
                sys.stdout.write(_CLEAR + text if is_terminal() else _added(before, text, output.for_programs))
                sys.stdout.flush()
            before = text
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


def _added(before: str, text: str, whole: bool) -> str:
    """Return the lines that are not in the text before; the whole text if it is JSON or YAML."""
    if whole:
        return text
    known = set(before.splitlines())
    return "".join(f"{line}\n" for line in text.splitlines() if line not in known)
