"""`larder openapi`: print the description of the API."""

import click

from app.cli.support.printing.terminal import exact


@click.command()
def openapi() -> None:
    """Print the API's description (OpenAPI 3.1) as JSON."""
    from app.openapi import document

    exact([document().encode()])
