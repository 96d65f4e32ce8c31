"""Format records as tables and text."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from app.cli.support.printing.terminal import say
from dataplane.base.units import format_size


def size(value: int | None) -> str:
    return "-" if value is None else format_size(value)


def floor(floor_bytes: int, effective_bytes: int | None) -> str:
    """Return the floor, and the guaranteed part if that is less."""
    if effective_bytes is None or effective_bytes >= floor_bytes:
        return size(floor_bytes or None)
    return f"{size(floor_bytes)} ({size(effective_bytes)} in effect)"


def tier_shares(shares: Mapping[str, Mapping[str, Any]], format_share: Callable[[int], str] = format_size) -> str:
    """Return the floors and limits of a quota in tiers: `disk limit 100 GiB floor 10 GiB`; `-` for none."""
    texts = []
    for name, share in sorted(shares.items()):
        parts = [
            f"{word} {format_share(share[f'{word}_bytes'])}"
            for word in ("limit", "floor")
            if share.get(f"{word}_bytes") is not None
        ]
        texts.append(" ".join([name, *parts]))
    return ", ".join(texts) or "-"


def pin_tiers(pin: Mapping[str, Any]) -> str:
    """Return what tiers behind memory hold of a pin: `disk 12 (96 MiB)`; `-` for nothing."""
    in_tiers = sorted((pin.get("tiers") or {}).items())
    return ", ".join(f"{name} {stats['blocks']:,} ({size(stats['bytes'])})" for name, stats in in_tiers) or "-"


def rate(bytes_per_s: int | None) -> str:
    return "-" if bytes_per_s is None else f"{format_size(bytes_per_s)}/s"


def percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.1f} %"


def span(seconds: float) -> str:
    """Return a duration as commands accept it: `7d`, `90m`, `45s`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:g}s"


def plural(number: int, singular: str, plural_noun: str = "") -> str:
    """Return a count with its noun: `1 chunk`, `2,000 chunks`. `plural_noun` is needed where an s does not make
    the plural."""
    return f"{number:,} {singular if number == 1 else plural_noun or singular + 's'}"


def tier(pin: dict[str, Any]) -> str:
    """Return the tier of a pin: `host` (also if an older server does not report it), or `gpu` with the number of GPU
    copies."""
    tier = str(pin.get("tier", "host"))
    return f"gpu ({plural(pin['gpu_copies'], 'GPU copy', 'GPU copies')})" if tier == "gpu" else tier


def ends(expires_at: float | None) -> str:
    """Return the time until the end: `never`, `in 3 h`, `expired`."""
    if expires_at is None:
        return "never"
    remaining_s = expires_at - time.time()
    return f"in {_about(remaining_s)}" if remaining_s > 0 else "expired"


def ago(at: float) -> str:
    """Return the time since a moment: `5 s ago`."""
    return f"{_about(max(time.time() - at, 0))} ago"


def _about(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def engines(node: Mapping[str, Any]) -> str:
    """Return the number of engines that are attached to a node; `-` if it has not reported."""
    return "-" if node["stats"] is None else str(sum(engine["connected"] for engine in node["stats"]["engines"]))


def gpu_copy_pools(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the node's pools of GPU copies; empty if the node has not reported or the server is of an older
    release."""
    return [] if node["stats"] is None else list(node["stats"].get("gpu_copy_pools", ()))


def tiers(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tiers behind the node's memory; empty if the node has not reported or the server is of an older
    release."""
    return [] if node["stats"] is None else list(node["stats"].get("tiers", ()))


def tier_state(tier: Mapping[str, Any]) -> str:
    """Return the state of a tier, with the reason if it does not serve: `not opened: Permission denied`."""
    if tier["serves"]:
        return ", ".join(filter(None, ("in service", listing(tier), draining(tier), foreign(tier))))
    state = tier.get("state", "in service")  # a node of an older release does not report it
    return f"{'out of service' if state == 'in service' else state}: {tier['reason']}"


def draining(tier: Mapping[str, Any]) -> str:
    """Return how far the drain of a tier is, `draining, 1,204 blocks left`; empty if it does not drain."""
    blocks = tier.get("draining_blocks")  # a node of an older release does not report it
    if blocks is None:
        return ""
    return f"draining, {blocks:,} blocks left" if blocks else "drained"


def listing(tier: Mapping[str, Any]) -> str:
    """Return how far the listing of a shared tier is, `listing, 1,204 blocks so far`; empty if none is under way."""
    blocks = tier.get("listed_blocks")  # a node of an older release does not report it
    if blocks is None:
        return ""
    fault = tier["listing_fault"]
    return f"listing, {blocks:,} blocks so far{f'; {fault}; it is tried again' if fault else ''}"


def foreign(tier: Mapping[str, Any]) -> str:
    """Return how many things in the tier are not blocks, and the name of one; empty for none."""
    count = tier.get("foreign_objects", 0)  # a node of an older release does not report it
    return f"{count:,} foreign objects skipped, such as {tier['first_foreign']!r}" if count else ""


def ratio(tier: Mapping[str, Any]) -> str:
    """Return stored bytes as a share of the bytes in memory: `67%`; `-` without blocks."""
    logical = tier.get("logical_bytes", 0)  # a node of an older release does not report it
    return f"{100 * tier['stored_bytes'] / logical:.0f}%" if logical else "-"


def unspilled(tier: Mapping[str, Any]) -> str:
    """Return the bytes that are still to be copied to a tier of a node: `12 MiB`; `-` for none."""
    nbytes = tier.get("waiting_bytes", 0) + tier["spilling_bytes"]  # a node of an older release has no waiting_bytes
    return size(nbytes) if nbytes else "-"


def encodings(tier: Mapping[str, Any]) -> str:
    """Return the number of blocks by how a tier holds them: `1,200 zstd, 12 none`."""
    counts = sorted(tier.get("encodings", {}).items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {name}" for name, count in counts)


def pool_state(pool: dict[str, Any]) -> str:
    """Return the most important state of a pool of GPU copies: its problem, or that not all copies fit."""
    if pool["problem"]:
        return str(pool["problem"])
    if pool["copying"] or pool["wanted"] <= pool["gpu_copies"]:
        return "-"
    return "full" if pool["used_bytes"] >= pool["capacity_bytes"] else "not all fit"


def faults(nodes: Iterable[dict[str, Any]]) -> None:
    """Print a line for every refusal that still applies, for every GPU with a problem, for every tier that is out of
    service or cannot be listed, for a tier directory that is too small, and for an id journal that is nearly full."""
    for node in nodes:
        for line in _faults(node):
            say(f"  {node['name']} {line}")


def _faults(node: dict[str, Any]) -> Iterator[str]:
    from app.schemas.views.findings import ID_JOURNAL_SHARE  # a command that needs no schema starts sooner

    stats = node["stats"] or {}  # an older server does not report all
    for pool in gpu_copy_pools(node):
        if pool["problem"]:
            yield f"GPU copies on {pool['name']} ({pool['device']}): {pool['problem']}"
    for tier in tiers(node):
        if not tier["serves"] or tier.get("listing_fault"):
            yield f"tier {tier['name']}: {tier_state(tier)}"
    if unlisted := stats.get("tier_directory_unlisted", 0):
        listed = f"lists {stats['tier_directory_blocks']:,} blocks"
        yield f"tier directory: {listed}; {unlisted:,} times a block did not fit, and engines do not find it"
    used, capacity = stats.get("id_journal_bytes", 0), stats.get("id_journal_capacity_bytes", 0)
    if capacity and used >= ID_JOURNAL_SHARE * capacity:
        share = f"{100 * used / capacity:.0f} % full of tenants with blocks"
        yield f"id journal: {share}; further tenants are refused when it is full"
    for fault in node["faults"]:
        yield f"refused {fault['type']}: {fault['path']}: {fault['message']} ({ago(fault['at'])})"


def applied(record: Mapping[str, Any]) -> str:
    """Return `applied`, or `waiting` with the states of the nodes that have not applied the record."""
    if record["status"]["applied"]:
        return "applied"
    if selects_no_node(record):
        return "waiting (no node)"
    nodes = record["status"]["nodes"]
    behind = [f"{name}: {at['state']}" for name, at in nodes.items() if at["state"] != "in_sync"]
    return "waiting" + (f" ({', '.join(behind)})" if behind else "")


def selects_no_node(record: Mapping[str, Any]) -> str:
    """Return why the record applies to no node, such as `no node matches the selector zone=b`; empty if it applies to
    one."""
    status = record["status"]
    applied = next((condition for condition in status.get("conditions", ()) if condition["type"] == "Applied"), None)
    if status["nodes"] or applied is None or applied["reason"] != "NoNode":
        return ""
    message: str = applied["message"]
    return message


def ineffective(record: Mapping[str, Any]) -> str:
    """Return why an applied record is not effective; empty if it is."""
    conditions = {condition["type"]: condition for condition in record["status"]["conditions"]}
    effective = conditions.get("Effective")
    if not record["status"]["applied"] or effective is None or effective["status"] != "False":
        return ""
    return f"not effective: {effective['message']}"


def refused(tenant: Mapping[str, Any]) -> str:
    """Return the number of refused blocks, with the most frequent reason."""
    reasons: dict[str, int] = tenant.get("refused") or {}
    count = tenant["refused_blocks"]
    if not reasons:
        return f"{count:,}"
    main_reason = max(reasons, key=lambda reason: reasons[reason])
    further = f", {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return f"{count:,} ({main_reason}{further})"
