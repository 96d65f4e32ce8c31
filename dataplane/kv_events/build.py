"""Create the publisher from the settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog
import zmq

from dataplane.core.node import Node
from dataplane.io.loop import Loop
from dataplane.kv_events.publisher import KvEventOptions, KvEventPublisher
from dataplane.kv_events.stream import Stream
from dataplane.protocol.join import is_loopback
from dataplane.settings import DataPlaneSettings, rank_url

DEFAULT_TOPICS = ("kv@{node}@{model}",)
MODELS = "kv-event-models.json"
"""File in the state directory with the models whose blocks were published."""

log = structlog.stdlib.get_logger()


def kv_event_publisher(
    settings: DataPlaneSettings,
    context: zmq.Context[zmq.Socket[bytes]],
    loop: Loop,
    node: Node,
    clock: Callable[[], float],
) -> KvEventPublisher | None:
    """Return the publisher, or None if it is off. Raise OSError if a socket cannot be bound."""
    url, table = settings.common.kv_events_url, settings.table
    if not url:
        return None
    streams: list[Stream] = []
    try:
        for number in range(table.kv_events_ranks):
            stream_url, replay = rank_url(url, number), rank_url(table.kv_events_replay_url, number)
            for endpoint in (stream_url, replay):
                if endpoint.startswith("ipc://"):
                    Path(endpoint.removeprefix("ipc://")).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            streams.append(
                Stream(context, stream_url, replay, number, table.kv_events_hwm, table.kv_events_buffer_steps, clock)
            )
    except (zmq.ZMQError, OSError) as error:
        for stream in streams:
            stream.close()
        reason = zmq.strerror(error.errno) if error.errno else str(error)
        raise OSError(
            f"kv_events_url: {stream_url} and {replay or 'no replay socket'} cannot be bound: {reason}; "
            "use other endpoints, or unset kv_events_url to publish no KV events"
        ) from None
    if table.kv_events_token_ids and not is_loopback(url):
        log.warning(
            "kv_events.prompts_open_to_others",
            url=url,
            effect="any client that can reach this address may read the token ids of prompts",
        )
    log.info("kv_events.publishing", urls=[stream.url for stream in streams])
    options = KvEventOptions(
        table.kv_events_format,
        tuple(topic.replace("{node}", node.options.name) for topic in table.kv_events_topics or DEFAULT_TOPICS),
        table.kv_events_medium,
        table.kv_events_token_ids,
        table.kv_events_block_tokens,
    )
    return KvEventPublisher(node.pool, loop, streams, options, clock, Path(settings.common.state_dir) / MODELS)
