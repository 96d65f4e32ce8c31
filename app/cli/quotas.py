"""`larder quota …`."""

import click

from app.cli import show
from app.cli.client import call, json_option, print_json, segment, url_option, wait_option


@click.group()
def quota() -> None:
    """How many bytes a tenant may keep. The empty salt is the tenant `_default`."""


@quota.command("list")
@url_option
@json_option
def list_quotas(url: str | None, as_json: bool) -> None:
    """Show all quotas."""
    answer = call(url, "GET", "/api/v1/quotas")
    if as_json:
        print_json(answer)
        return
    rows = [
        [q["tenant"], show.size(q["limit_bytes"]), show.size(q["used_bytes"]), show.applied(q), q["note"]]
        for q in answer["items"]
    ]
    show.table(f"Quotas ({answer['total']})", ["tenant", "limit ", "used ", "state", "note"], rows)


@quota.command("get")
@click.argument("tenant")
@url_option
def get_quota(url: str | None, tenant: str) -> None:
    """Show one tenant's quota as JSON."""
    print_json(call(url, "GET", f"/api/v1/quotas/{segment(tenant)}"))


@quota.command("set")
@click.argument("tenant")
@click.argument("limit")
@click.option("--note", default="", help="For people.")
@url_option
@wait_option
@json_option
def set_quota(url: str | None, tenant: str, limit: str, note: str, wait: str | None, as_json: bool) -> None:
    """Set a tenant's limit: a size such as 4GiB, or `none` for no cap."""
    body = {"limit_bytes": None if limit == "none" else limit, "note": note}
    answer = call(url, "PUT", f"/api/v1/quotas/{segment(tenant)}", body, {"wait": wait})
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{answer['tenant']}: limit {show.size(answer['limit_bytes'])}, {show.applied(answer)}")


@quota.command("delete")
@click.argument("tenant")
@url_option
@wait_option
def delete_quota(url: str | None, tenant: str, wait: str | None) -> None:
    """Forget a tenant's quota."""
    call(url, "DELETE", f"/api/v1/quotas/{segment(tenant)}", None, {"wait": wait})
    click.echo(f"{tenant}: quota deleted")
