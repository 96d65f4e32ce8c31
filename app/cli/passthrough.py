"""`larder dataplane`, `replay` and `demo`: modules of their own, run with everything that follows, help included."""

import os
import sys

import click

_RAW = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _become(module: str, arguments: list[str]) -> None:
    """Replace this process, so that signals and the exit code are the module's own."""
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


@click.command(context_settings=_RAW, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def replay(arguments: tuple[str, ...]) -> None:
    """Replay a request trace against a data plane."""
    _become("dataplane.replay", list(arguments))


@click.command(context_settings=_RAW, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def dataplane(arguments: tuple[str, ...]) -> None:
    """Run a data plane alone, for a management plane elsewhere."""
    _become("dataplane", list(arguments))


@click.command(context_settings=_RAW, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> None:
    """Start Larder with a real load to look at."""
    _become("app.demo", list(arguments))
