"""`larder dataplane`, `replay` and `demo`: run other modules with all arguments, help options included."""

import os

import click

from dataplane.base.child_command import module_command

_RAW = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _running(name: str, module: str, about: str) -> click.Command:
    """Return a command that replaces this process with the module, so that the module gets the signals and sets the
    exit code."""

    @click.command(name, help=about, context_settings=_RAW, add_help_option=False)
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def run(arguments: tuple[str, ...]) -> None:
        command = module_command(module, *arguments)
        os.execv(command[0], command)

    return run


replay = _running("replay", "dataplane.replay", "Replay a request trace against a data plane.")
dataplane = _running("dataplane", "dataplane", "Run a data plane for a management plane on another machine.")
demo = _running("demo", "app.demo", "Start Larder with a synthetic load.")
