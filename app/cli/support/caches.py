"""Lines for `larder status` and `larder doctor`: how caches started, and pins that hold nothing."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from app.cli.support import show

RECENT_S = 600.0
"""Seconds for which a start without lost blocks has a line."""
MAX_PINS = 10
"""Largest number of pins with a line of their own."""


def cold(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of nodes with a cold cache."""
    return [node["name"] for node in nodes if (node["stats"] or {}).get("cold")]


def empty(pins: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the pins that should keep their blocks and hold none."""
    return [pin for pin in pins if pin.get("holds_nothing")]


def trouble(overview: Mapping[str, Any]) -> str:
    """Return what is wrong with caches and pins, as the end of a sentence; empty when all is well."""
    nodes, pins = cold(overview["nodes"]), empty(overview["pins"])
    parts = []
    if nodes:
        parts.append(
            f"the cache of {nodes[0]} is cold" if len(nodes) == 1 else f"{len(nodes)} caches are cold"
        )
    if pins:
        parts.append(
            f"pin {pins[0]['name']} holds nothing" if len(pins) == 1 else f"{len(pins)} pins hold nothing"
        )
    return " and ".join(parts)


def began(node: Mapping[str, Any]) -> str:
    """Return how the cache of a node started; empty if that needs no mention."""
    stats = node["stats"] or {}
    start = stats.get("start")  # an older server does not report it
    if start is None:
        return ""
    text = ""
    recent = time.time() - start["at"] < RECENT_S
    reason = f": {start['reason']}" if start["reason"] else ""
    if stats["cold"]:
        text = f"cold since {_clock(start['at'])}, {_lost(start)} lost{reason}"
    elif start["kind"] == "cold" and start["released"] and not stats["pool"]["blocks"]:
        text = f"empty since {_clock(start['at'])}{reason}"
    elif start["kind"] == "cold" and start["released"] and recent:
        text = f"began empty {show.ago(start['at'])}{reason}"
    elif start["kind"] == "warm" and recent:
        kept = f"{show.plural(start['blocks'], 'block')} ({show.size(start['bytes'])})"
        lost = f", {_lost(start)} lost{reason}" if start["lost_blocks"] else ""
        text = f"kept {kept} at its start {show.ago(start['at'])}{lost}"
    elif start["kind"] == "first" and recent:
        text = f"new, first start {show.ago(start['at'])}"
    return text and f"cache of {node['name']}: {text}"


def _lost(start: Mapping[str, Any]) -> str:
    blocks = start["lost_blocks"]
    nbytes = (
        f" ({show.size(start['lost_bytes'])})" if start["lost_bytes"] else ""
    )  # 0: only the number is known
    return f"{show.plural(blocks, 'block')}{nbytes} {'was' if blocks == 1 else 'were'}"


def holds_nothing(pin: Mapping[str, Any]) -> str:
    """Return why a pin holds nothing and what to expect."""
    blocks = pin["resolved"]
    if blocks == 1:
        return "its only block is not cached; it is kept as soon as an engine stores it"
    return f"none of its {blocks:,} blocks is cached; they are kept as soon as an engine stores them"


def lines(overview: Mapping[str, Any]) -> list[str]:
    """Return a line for each cache and pin that needs a mention."""
    pins = empty(overview["pins"])
    found = [line for node in overview["nodes"] if (line := began(node))]
    found += [f"pin {pin['name']} ({pin['tenant']}): {holds_nothing(pin)}" for pin in pins[:MAX_PINS]]
    if len(pins) > MAX_PINS:
        found.append(f"{len(pins) - MAX_PINS} more pins hold nothing: larder pins list")
    return found


def _clock(at: float) -> str:
    """Return the local time, such as `12:03`, with the date if it is not today."""
    then = time.localtime(at)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)
