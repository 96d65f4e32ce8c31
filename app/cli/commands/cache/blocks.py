"""`larder blocks`."""

from typing import Any

import click

from app.cli.support import show
from app.cli.support.client import call, json_option, print_json, segment, url_option
from app.cli.support.short import whole
from app.cli.support.terminal import say

PAGE = 1000


@click.command()
@click.argument("key", required=False)
@click.option("--tenant", help="Only of this tenant, as shown.")
@click.option("--model", help="Only of this model.")
@click.option("--space", help="Only of this space: its 32 hex digits, or the first 8 or more.")
@click.option("--prefix", metavar="LABEL", help="Only of this hot prefix, as 'larder prefixes' lists it.")
@click.option("--node", help="Only of this node.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most this many.")
@click.option("--wide", is_flag=True, help="Keys and spaces in full, as other commands take them.")
@url_option
@json_option
def blocks(
    key: str | None,
    tenant: str | None,
    model: str | None,
    space: str | None,
    prefix: str | None,
    node: str | None,
    limit: int,
    wide: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Show cached blocks, or all copies of KEY (64 hex digits, or the first 8 or more)."""
    space = None if space is None else whole(url, "space", space)
    filters = {"tenant": tenant, "model": model, "space": space, "prefix": prefix, "node": node}
    if key is not None:
        if any(filters.values()):
            raise click.UsageError("expected a KEY alone, or filters")
        answer = call(url, "GET", f"/api/v1/blocks/{segment(whole(url, 'key', key))}")
        more = False
    else:
        answer, more = _listed(url, filters, limit)
    if as_json:
        print_json(answer)
        return
    rows = [
        [
            block["node"],
            block["key"] if wide or key is not None else block["key"][:16],
            block["tenant"],
            block["model"],
            block["space"] if wide else block["space"][:8],
            block["state"] if block["tier"] == "l1" else f"{block['state']} ({block['tier']})",
            show.size(block["bytes"]),
            str(block["leases"] or "-"),
            ", ".join(block["pins"]) or "-",
            str(block["hits"]),
            show.ago(block["stored_at"]),
            show.ago(block["used_at"]),
            "yes" if block["checksum"] else "no",
        ]
        for block in answer["items"]
    ]
    columns = ["node", "key", "tenant", "model", "space", "state", "bytes ", "leases ", "pins"]
    columns += ["hits ", "stored", "used", "checksum"]
    show.table(f"Blocks ({len(rows)}{', more with --limit' if more else ''})", columns, rows)
    for silent in answer["silent"]:
        say(f"{silent['node']}: {silent['error']}")


def _listed(url: str | None, filters: dict[str, str | None], limit: int) -> tuple[dict[str, Any], bool]:
    """Return the items of all pages up to `limit`, and whether there are more."""
    items: list[dict[str, Any]] = []
    silent: dict[str, dict[str, Any]] = {}
    cursor = ""
    while True:
        query = {**filters, "limit": str(min(PAGE, limit - len(items))), "cursor": cursor or None}
        page = call(url, "GET", "/api/v1/blocks", None, query)
        items += page["items"]
        silent |= {each["node"]: each for each in page["silent"]}
        cursor = page["next_cursor"]
        if not cursor or len(items) >= limit:
            return {"items": items, "next_cursor": cursor, "silent": list(silent.values())}, bool(cursor)
