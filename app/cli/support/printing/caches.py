"""Lines for `larder status` and `larder doctor`: states and conditions of nodes, how caches started, and pins whose
blocks are not all in memory."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from app.cli.support.printing import show

RECENT_S = 600.0
"""Seconds for which a start without lost blocks has a line."""
FULL_BUDGET_SHARE = 0.95
"""Share of a node's pin budget from which it counts as full."""
MAX_PINS = 10
"""Largest number of pins with a line of their own."""


def cold(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of nodes with a cold cache."""
    return [node["name"] for node in nodes if (node["stats"] or {}).get("cold")]


def empty(pins: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the pins that should keep their blocks and hold none."""
    return [pin for pin in pins if pin.get("holds_nothing")]


def waiting(pins: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the pins that should be in memory and have blocks that only tiers hold."""
    return [pin for pin in pins if pin.get("only_in_tiers")]


def full_of_pins(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of nodes on which pins leave no room for further ones (the alert LarderPoolFullOfPins)."""
    pools = [(node["name"], (node["stats"] or {}).get("pool", {})) for node in nodes if node["state"] != "lost"]
    return [
        name
        for name, pool in pools
        if pool.get("pinned_bytes", 0) > FULL_BUDGET_SHARE * pool.get("pin_budget_bytes", 0)
    ]


def trouble(overview: Mapping[str, Any]) -> str:
    """Return what is wrong with caches, tiers and pins, as the end of a sentence; empty when all is well."""
    nodes, pins = cold(overview["nodes"]), empty(overview["pins"])
    full = full_of_pins(overview["nodes"])
    parts = [
        f"node {node['name']} is {_CONDITIONS.get(each['type'], each['type'])}"
        for node in overview["nodes"]
        for each in node.get("conditions", ())
        if each["ended_at"] is None
    ][:1]
    if nodes:
        parts.append(f"the cache of {nodes[0]} is cold" if len(nodes) == 1 else f"{len(nodes)} caches are cold")
    if pins:
        parts.append(f"pin {pins[0]['name']} holds nothing" if len(pins) == 1 else f"{len(pins)} pins hold nothing")
    if loading := waiting(overview["pins"]):
        one = f"pin {loading[0]['name']} is not fully in memory"
        parts.append(one if len(loading) == 1 else f"{len(loading)} pins are not fully in memory")
    if full:
        where = full[0] if len(full) == 1 else f"{len(full)} nodes"
        parts.append(f"pins fill their budget on {where}")
    for state, opening in (("out of service", False), ("opening", True)):
        away = [
            (tier["name"], node["name"])
            for node in overview["nodes"]
            for tier in show.tiers(node)
            if not tier["serves"] and (tier.get("state") == "opening") == opening
        ]
        if away:
            one = f"tier {away[0][0]} of {away[0][1]} is {state}"
            parts.append(one if len(away) == 1 else f"{len(away)} tiers are {state}")
    return " and ".join(parts)


def node_state(node: dict[str, Any]) -> str:
    """Return the state of a node for a table cell, with everything unusual."""
    notes = [
        _CONDITION_NOTES.get(each["type"], each["type"])
        for each in node.get("conditions", ())
        if each["ended_at"] is None
    ]
    notes += ["draining"] if node["draining"] else []
    if offset_s := node["clock_offset_s"]:
        notes.append(f"clock {abs(offset_s):.0f} s {'ahead' if offset_s > 0 else 'behind'}")
    if cold([node]):
        notes.append("cache cold")
    if any(pool["problem"] for pool in show.gpu_copy_pools(node)):
        notes.append("GPU copies: a problem")
    if any(not tier["serves"] and tier.get("state") != "opening" for tier in show.tiers(node)):
        notes.append("tier out of service")
    return str(node["state"]) + (f" ({', '.join(notes)})" if notes else "")


_CONDITION_NOTES = {"crash_loop": "crash loop", "thrashing": "thrashing", "tenant_at_limit": "tenant at its limit"}
_CONDITIONS = {
    "crash_loop": "in a crash loop",
    "thrashing": "thrashing",
    "tenant_at_limit": "refusing blocks of a tenant at its limit",
}


def condition(name: str, each: Mapping[str, Any]) -> str:
    """Return what a condition of a node says, such as a crash loop."""
    what = _CONDITIONS.get(each["type"], each["type"])
    if each["ended_at"] is None:
        return f"node {name} is {what} since {_clock(each['since'])}: {each['message']}"
    return f"node {name} was {what} until {show.ago(each['ended_at'])}: {each['message']}"


def conditions(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each condition of a node. An older server does not report them."""
    return [condition(node["name"], each) for node in nodes for each in node.get("conditions", ())]


def began(node: dict[str, Any]) -> str:
    """Return how the cache of a node started; empty if that needs no mention."""
    stats = node["stats"] or {}
    start = stats.get("start")  # an older server does not report it
    if start is None:
        return ""
    text = ""
    recent = time.time() - start["at"] < RECENT_S
    reason = f": {start['reason']}" if start["reason"] else ""
    if stats["cold"]:
        text = f"cold since {_clock(start['at'])}, {_lost(start)} lost{reason}{_in_tiers(node)}"
    elif start["kind"] == "cold" and start["released"] and not stats["pool"]["blocks"]:
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


def holds_nothing(pin: Mapping[str, Any]) -> str:
    """Return why a pin holds nothing and what to expect."""
    blocks = pin["resolved"]
    if blocks == 1:
        return "its only block is not cached; it is kept as soon as an engine stores it"
    return f"none of its {blocks:,} blocks is cached; they are kept as soon as an engine stores them"


def unlisted(pin: Mapping[str, Any]) -> str:
    """Return why it is not known whether a pin holds blocks."""
    tiers = pin["unlisted_tiers"]
    one = f"the listing of tier {tiers[0]} is complete"
    until = one if len(tiers) == 1 else f"the listings of the tiers {', '.join(tiers)} are complete"
    return f"none of its blocks is in memory; whether tiers hold them is unknown until {until}"


def only_in_tiers(pin: Mapping[str, Any]) -> str:
    """Return how many blocks of a pin are not in memory yet, and what happens to them."""
    blocks = f"{pin['only_in_tiers']:,} of {show.plural(pin['resolved'], 'block')} only in tiers, not in memory"
    next_step = {
        "budget": "the pin budgets have no room for them",
        "failed": "the last load failed; it is tried again",
        "detached": "they are loaded once an engine of the model attaches",
    }
    return f"{blocks}: {next_step.get(pin['not_loaded'], 'they are being loaded')}"


def pin_state(pin: Mapping[str, Any]) -> str:
    """Return the state of a pin, for a column."""
    if pin.get("holds_nothing"):
        return "holds nothing"
    if count := pin.get("only_in_tiers"):
        reason = {"budget": "no room in the pin budget", "failed": "load failed", "detached": "no engine attached"}
        return f"{count:,} only in tiers: {reason.get(pin['not_loaded'], 'loading')}"
    if tiers := pin.get("unlisted_tiers"):
        return f"unknown until {' and '.join(tiers)} {'is' if len(tiers) == 1 else 'are'} listed"
    state = show.applied(dict(pin))
    return "degraded: beyond the pin budget" if state == "applied" and pin.get("degraded") else state


def lines(overview: Mapping[str, Any]) -> list[str]:
    """Return a line for each cache and pin that needs a mention."""
    pins = empty(overview["pins"])
    found = conditions(overview["nodes"])
    found += [line for node in overview["nodes"] if (line := began(node))]
    found += [f"pin {pin['name']} ({pin['tenant']}): {holds_nothing(pin)}" for pin in pins[:MAX_PINS]]
    if len(pins) > MAX_PINS:
        found.append(f"{len(pins) - MAX_PINS} more pins hold nothing: larder pins list")
    loading = waiting(overview["pins"])
    found += [f"pin {pin['name']} ({pin['tenant']}): {only_in_tiers(pin)}" for pin in loading[:MAX_PINS]]
    unknown = [pin for pin in overview["pins"] if pin.get("unlisted_tiers")]
    found += [f"pin {pin['name']} ({pin['tenant']}): {unlisted(pin)}" for pin in unknown[:MAX_PINS]]
    if len(loading) > MAX_PINS:
        found.append(f"{len(loading) - MAX_PINS} more pins are not fully in memory: larder pins list")
    return found


def _clock(at: float) -> str:
    """Return the local time, such as `12:03`, with the date if it is not today."""
    then = time.localtime(at)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)
