"""`larder dataplane`, `replay` and `demo`: run other modules with all arguments, help options included."""

import os

import click

from dataplane.base.child_command import module_command

_RAW = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _become(module: str, arguments: list[str]) -> None:
    """Replace this process with the module, so that the module gets the signals and sets the exit code."""
    command = module_command(module, *arguments)
    os.execv(command[0], command)


@click.command(context_settings=_RAW, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def replay(arguments: tuple[str, ...]) -> None:
    """Replay a request trace against a data plane."""
    _become("dataplane.replay", list(arguments))


@click.command(context_settings=_RAW, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def dataplane(arguments: tuple[str, ...]) -> None:
    """Run a data plane for a management plane on another machine."""
    _become("dataplane", list(arguments))


@click.command(context_settings=_RAW, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> None:
    """Start Larder with a synthetic load."""
    _become("app.demo", list(arguments))
