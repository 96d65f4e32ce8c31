"""The line with which `larder up` ends its start: where the API, the engine socket and the LMCache gateway are."""

import asyncio
import sys
import time

import structlog

from app import __version__
from app.compose import Parts
from app.push.states import NodeState
from app.settings import Settings
from dataplane.base.log_writer import LogWriter
from dataplane.base.visible import plain

POLL_S = 0.05


async def announce(settings: Settings, parts: Parts, url: str) -> None:
    """Wait until the embedded data plane also serves, and print all addresses.

    The line goes to standard output when that is a terminal or the log format is `console`. Otherwise, and in a JSON
    log, it is the event `larder.serving`.
    """
    style = settings.app.log_format
    as_text = style == "console" or sys.stdout.isatty()
    as_event = not as_text or style == "json" or (style == "auto" and not sys.stderr.isatty())
    fields = {"url": url}
    if settings.app.embedded_data_plane:
        fields |= await _sockets(settings, parts)
    if as_event:
        structlog.get_logger().info("larder.serving", **fields)
    if as_text:
        out = LogWriter(sys.stdout.fileno())  # a stopped terminal must not block the event loop
        out.write(plain(_line(fields)) + "\n")
        await asyncio.to_thread(out.close)


async def _sockets(settings: Settings, parts: Parts) -> dict[str, str]:
    """Return the engine socket and the URL of the gateway (empty if it is off) once the data plane has reported them
    and answered the first snapshots; a manager that does not push does not wait long for that answer."""
    serves_since = None
    while True:
        node = parts.fleet.at((settings.common.control_url, ""))
        if node is not None and node.welcomed and node.live_stats is not None:
            now = time.monotonic()
            serves_since = serves_since or now
            answered = parts.foundation.progress.state(node) in (NodeState.IN_SYNC, NodeState.NACKED)
            if answered or now - serves_since >= settings.app.push_timeout_s:
                gateway = node.live_stats.gateway
                return {"engine_socket": node.engine_socket, "gateway": "" if gateway is None else gateway.url}
        await asyncio.sleep(POLL_S)


def _line(fields: dict[str, str]) -> str:
    parts = [f"dashboard and API {fields['url']}"]
    if "engine_socket" in fields:
        parts += [f"engine socket {fields['engine_socket']}", f"LMCache gateway {fields['gateway'] or 'off'}"]
    return f"Larder {__version__} serves: {', '.join(parts)}"
