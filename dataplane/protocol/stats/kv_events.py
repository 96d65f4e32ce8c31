"""The publisher of KV events."""

from typing import Annotated

import msgspec

from dataplane.protocol.stats.figures import counter


class KvEventStats(msgspec.Struct):
    """Counters of the publisher of KV events, over all ranks."""

    urls: list[str]
    """URL of each rank's socket."""
    published: Annotated[int, counter("larder_kv_events_published")]
    """KV events sent to subscribers."""
    dropped: Annotated[int, counter("larder_kv_events_dropped")]
    """KV events that were lost before they were sent, or that were sent while the queue of a subscriber was full."""
    replayed: Annotated[int, counter("larder_kv_events_replayed")]
    """KV events sent again to subscribers that asked for them."""
    replays_abandoned: Annotated[int, counter("larder_kv_events_replays_abandoned")] = 0
    """Replays that were abandoned because their client did not read the answers."""
