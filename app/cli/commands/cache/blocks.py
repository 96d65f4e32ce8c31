"""`larder blocks …`: list cached blocks, and show one."""

import click

from app.cli.support.api.client import call, every, segment
from app.cli.support.api.short import whole
from app.cli.support.exit_codes import check_nodes
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column
from app.cli.support.resources.options import Noun, Output, limit_of, request_options, watch_option


def _columns(output: Output) -> list[Column]:
    """Return the columns. Keys and spaces are cut to their first digits, except with `-o wide`."""
    key_digits, space_digits = (64, 32) if output.wide else (16, 8)
    return [
        Column("key", lambda b: b["key"][:key_digits]),
        Column("tenant", lambda b: b["tenant"]),
        Column("model", lambda b: b["model"], drop=1),
        Column("node", lambda b: b["node"], drop=4),
        Column("space", lambda b: b["space"][:space_digits], drop=6),
        Column("state", lambda b: b["state"] if b["tier"] == "l1" else f"{b['state']} ({b['tier']})"),
        Column("bytes", lambda b: show.size(b["bytes"]), right=True),
        Column("leases", lambda b: str(b["leases"] or "-"), drop=5, right=True),
        Column("pins", lambda b: ", ".join(b["pins"]) or "-", drop=3),
        Column("hits", lambda b: str(b["hits"]), right=True),
        Column("stored", lambda b: show.ago(b["stored_at"]), drop=7),
        Column("used", lambda b: show.ago(b["used_at"]), drop=2),
        Column("checksum", lambda b: "yes" if b["checksum"] else "no", drop=8),
    ]


@click.group(cls=Noun)
def blocks() -> None:
    """Show cached blocks."""


@blocks.command("get")
@click.argument("key")
@request_options
def get_block(key: str, url: str | None, output: Output) -> None:
    """Show all copies of KEY (64 hex digits, or the first 8 or more)."""
    key = whole(url, "key", key)
    answer = call(url, "GET", f"/api/v1/blocks/{segment(key)}")
    output.listing(f"Copies of {key}", answer, _columns(output), "node")
    check_nodes(answer["failed_nodes"])


@blocks.command("list")
@click.option("--tenant", help="Only this tenant; `_default` for the empty salt.")
@click.option("--model", help="Only this model.")
@click.option("--space", help="Only this space: its 32 hex digits, or the first 8 or more.")
@click.option("--prefix", metavar="LABEL", help="Only this hot prefix, by its label in 'larder prefixes'.")
@click.option("--node", metavar="NAME", help="Only this node.")
@limit_of(50)
@request_options
@watch_option
def list_blocks(
    tenant: str | None,
    model: str | None,
    space: str | None,
    prefix: str | None,
    node: str | None,
    limit: int,
    url: str | None,
    output: Output,
) -> None:
    """List cached blocks. `-o wide` shows keys and spaces in full, as other commands take them."""
    space = None if space is None else whole(url, "space", space)
    filters = {"tenant": tenant, "model": model, "space": space, "prefix": prefix, "node": node}
    answer = every(url, "/api/v1/blocks", filters, limit)
    output.listing("Blocks", answer, _columns(output), "key")
    check_nodes(answer["failed_nodes"])
