"""The publisher of KV events."""

import msgspec


class KvEventStats(msgspec.Struct):
    """Counters of the publisher of KV events, over all ranks."""

    urls: list[str]
    """URL of each rank's socket."""
    published: int
    dropped: int
    """Events that were lost before they were sent, or that were sent while the queue of a subscriber was full."""
    replayed: int
    replays_abandoned: int = 0
    """Replays that were abandoned because their client did not read the answers."""
