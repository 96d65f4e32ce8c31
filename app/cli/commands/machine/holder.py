"""`larder holder`: hold the memory of the data planes of a state directory."""

import os

import click

from app.settings import load
from dataplane.base.child_command import standalone_command


@click.command()
@click.option("--config", type=click.Path(dir_okay=False), help="Settings file; default LARDER_CONFIG, ./larder.toml.")
def holder(config: str | None) -> None:
    """Hold the memory of the data plane of this state directory, so that it outlives the data plane.

    Without this command, a data plane starts a holder of its own, which a service manager or a container ends with it.
    There, run this command as a service, and set dataplane.external_holder for the data plane. SIGTERM ends the holder,
    and releases memory that no data plane uses.
    """
    from dataplane.holding.requests import PROGRAM

    settings = load(config)
    command = standalone_command(PROGRAM, str(settings.state_dir.absolute()))
    os.execv(command[0], command)  # the holder has none of the modules of this command
