"""States of nodes, and how their caches started, for tables and lines of commands."""

import time
from collections.abc import Mapping
from typing import Any

from app.cli.support.printing import show

RECENT_S = 600.0
"""Seconds for which a start without lost blocks has a line."""


def node_state(node: dict[str, Any]) -> str:
    """Return the state of a node for a table cell, with everything unusual."""
    notes = [
        _CONDITION_NOTES.get(condition["type"], condition["type"])
        for condition in node.get("conditions", ())
        if condition["ended_at"] is None
    ]
    notes += ["draining"] if node["draining"] else []
    if offset_s := node["clock_offset_s"]:
        notes.append(f"clock {abs(offset_s):.0f} s {'ahead' if offset_s > 0 else 'behind'}")
    if (node["stats"] or {}).get("cold"):
        notes.append("cache cold")
    if any(pool["problem"] for pool in show.gpu_copy_pools(node)):
        notes.append("GPU copies: a problem")
    if any(not tier["serves"] and tier.get("state") != "opening" for tier in show.tiers(node)):
        notes.append("tier out of service")
    return str(node["state"]) + (f" ({', '.join(notes)})" if notes else "")


_CONDITION_NOTES = {"crash_loop": "crash loop", "thrashing": "thrashing", "tenant_at_limit": "tenant at its limit"}


def began(node: dict[str, Any]) -> str:
    """Return how the cache of a node started; empty if that needs no mention, or a finding says that it is cold."""
    stats = node["stats"] or {}
    start = stats.get("start")  # an older server does not report it
    if start is None or stats.get("cold"):
        return ""
    text = ""
    recent = time.time() - start["at"] < RECENT_S
    reason = f": {start['reason']}" if start["reason"] else ""
    if start["kind"] == "cold" and start["released"] and not stats["pool"]["blocks"]:
        text = f"empty since {_clock(start['at'])}{reason}{_in_tiers(node)}"
    elif start["kind"] == "cold" and start["released"] and recent:
        text = f"began empty {show.ago(start['at'])}{reason}{_in_tiers(node)}"
    elif start["kind"] == "warm" and recent:
        cached = f"{show.plural(start['blocks'], 'block')} ({show.size(start['bytes'])})"
        lost = f", {_lost(start)} lost{reason}" if start["lost_blocks"] else ""
        text = f"kept {cached} at its start {show.ago(start['at'])}{lost}"
    elif start["kind"] == "first" and recent:
        text = f"new, first start {show.ago(start['at'])}"
    return text and f"cache of {node['name']}: {text}"


def _in_tiers(node: dict[str, Any]) -> str:
    """Return what tiers kept; empty if they hold nothing."""
    tiers = show.tiers(node)
    blocks = sum(tier["blocks"] for tier in tiers)
    if not blocks:
        return ""
    nbytes = show.size(sum(tier["stored_bytes"] for tier in tiers))
    return f"; tiers hold {show.plural(blocks, 'block')} ({nbytes}), which are loaded when engines ask for them"


def _lost(start: Mapping[str, Any]) -> str:
    blocks = start["lost_blocks"]
    nbytes = f" ({show.size(start['lost_bytes'])})" if start["lost_bytes"] else ""  # 0: only the number is known
    return f"{show.plural(blocks, 'block')}{nbytes} {'was' if blocks == 1 else 'were'}"


def _clock(at: float) -> str:
    """Return the local time, such as `12:03`, with the date if it is not today."""
    then = time.localtime(at)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)
