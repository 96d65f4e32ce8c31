"""`larder openapi`."""

import click


@click.command()
def openapi() -> None:
    """Print the API's description (OpenAPI 3.1) as JSON."""
    from app.openapi import document

    click.echo(document(), nl=False)
