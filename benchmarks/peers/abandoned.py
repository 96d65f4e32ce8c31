"""Look-ups whose result is never fetched, as of schedulers that died: what they leave in the server's memory."""

from benchmarks.harness.result import Result, at_most
from benchmarks.peers.effort import Effort
from benchmarks.peers.peer import SMALL_CHUNK_BYTES, Peer, prompt
from benchmarks.peers.wire import LOOKUP, ONE, Key

MODEL = "bench/abandoned"
AT_ONCE = 64
SETTLED = 0.1
"""Share of the look-ups after which growth counts: what is kept at all has its room by then."""
FLAT_MIB = 8.0


def run(larder: Peer, lmcache: Peer, effort: Effort) -> list[Result]:
    larder_bytes = _growth(larder, effort.abandoned)
    lmcache_bytes = _growth(lmcache, effort.abandoned_at_lmcache)
    return [
        at_most("abandoned_growth", larder_bytes * effort.abandoned / (1 << 20), "MiB", FLAT_MIB),
        at_most("abandoned_bytes_each", max(0.0, larder_bytes), "B", None, lmcache_bytes),
    ]


def _growth(peer: Peer, lookups: int) -> float:
    """Bytes of private memory that each look-up adds."""
    peer.register(MODEL, SMALL_CHUNK_BYTES)
    tokens = prompt(256, "abandoned")
    peer.store_unwritten(Key(MODEL, tokens, worker=0))
    lookup_key = Key(MODEL, tokens, worker=None)
    first = int(lookups * SETTLED)
    _abandon(peer, lookup_key, first)
    before = peer.resident_bytes()
    _abandon(peer, lookup_key, lookups - first)
    return (peer.resident_bytes() - before) / (lookups - first)


def _abandon(peer: Peer, key: Key, lookups: int) -> None:
    under_way = 0
    for _ in range(lookups):
        peer.wire.send(LOOKUP, (key.of(peer.next_request()), ONE))
        under_way += 1
        if under_way == AT_ONCE:
            peer.wire.receive()
            under_way -= 1
    for _ in range(under_way):
        peer.wire.receive()
