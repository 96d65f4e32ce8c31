"""Node selectors of records: the option, its parser, and the text in tables."""

from collections.abc import Mapping

import click

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
