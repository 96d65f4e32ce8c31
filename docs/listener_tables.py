"""The page of limits of listeners, from the constants that enforce them."""

from app.http.middleware import connections, server_protocol
from dataplane.base import connection_guard
from dataplane.base.units import format_size
from dataplane.gateways.lmcache.zmtp import connections as gateway
from dataplane.gateways.lmcache.zmtp import protocol as zmtp
from dataplane.holding import messages as holder
from dataplane.holding import process as holding
from dataplane.ipc.queue import remote
from dataplane.kv_events import stream
from dataplane.protocol import engine as engine_protocol
from dataplane.protocol.control.snapshots import MAX_SNAPSHOT_BYTES
from dataplane.protocol.join import MAX_JOIN_BYTES
from dataplane.sockets import curve, engine, publisher


def page(note: str) -> str:
    """`reference/listeners.md`: what a peer can make a listener hold."""
    size, http, guard = format_size, server_protocol, connection_guard
    watched = f"{guard.MAX:,}"
    rows = [
        (
            "HTTP",
            f"head {size(http.MAX_HEAD_BYTES)}; incomplete heads of all connections {size(http.MAX_UNFINISHED_BYTES)}",
            f"{http.MAX_HEADERS} fields; {http.MAX_WAITING} requests ahead of answers",
            f"{connections.MAX_CONNECTIONS:,}, and the descriptors; half of them for one address",
            f"head {http.HEAD_S:g} s, body {http.BODY_S:g} s, idle {http.IDLE_S:g} s",
        ),
        ("join", f"{size(MAX_JOIN_BYTES)}; {size(guard.MAX_BYTES)} on a connection", "", watched, f"{guard.MAX_S:g} s"),
        (
            "control, events (CURVE)",
            f"{size(guard.MAX_BYTES)} on a connection before its key is admitted; then {size(MAX_SNAPSHOT_BYTES)}, and "
            f"{size(publisher.MAX_RECEIVED_BYTES)} for events",
            "",
            f"{watched} before admission",
            f"handshake {curve.HANDSHAKE_MS / 1000:g} s",
        ),
        (
            "KV events, replays",
            f"{size(stream.MAX_REQUEST_BYTES)}; {size(stream.MAX_RECEIVED_BYTES)} on a connection",
            "",
            watched,
            "",
        ),
        (
            "LMCache gateway",
            f"{size(gateway.MAX_MESSAGE_BYTES)}; incomplete ones of all connections {size(gateway.MAX_TAKEN_BYTES)}",
            f"{zmtp.MAX_FRAMES:,} frames",
            f"{gateway.MAX_OPEN:,}, and half of the descriptors",
            f"handshake {gateway.HANDSHAKE_S:g} s, message {gateway.MESSAGE_S:g} s",
        ),
        (
            "engine socket",
            size(engine_protocol.MAX_DATAGRAM_BYTES),
            "",
            f"{engine.MAX_CONNECTIONS:,}, half of them for one process",
            "",
        ),
        (
            "holder",
            size(holder.MAX_DATAGRAM_BYTES),
            f"{holder.MAX_FDS_PER_DATAGRAM} descriptors",
            f"{holding.MAX_CONNECTIONS}",
            f"memory is received in {holding.SEND_TIMEOUT_S:g} s",
        ),
        (
            "remote ends of message queues",
            size(remote.MAX_RECEIVED_BYTES),
            "",
            "",
            f"handshake {remote.HANDSHAKE_MS / 1000:g} s",
        ),
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"""# Limits of listeners

{note}

What a peer can make each listener hold. An empty cell is no limit. Bodies and callers of HTTP have
[limits of their own](../operate/security.md#limits-per-caller).

| listener | bytes of a message | parts | connections | time |
|---|---|---|---|---|
{table}
"""
