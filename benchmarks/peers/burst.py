"""One and a half times the pool in one go: what is dropped although the client gets the answer that it was stored."""

from time import perf_counter

from benchmarks.harness.memory import MiB
from benchmarks.harness.result import Result, at_most
from benchmarks.peers.effort import Effort
from benchmarks.peers.peer import NO_BYTES, Peer, prompt
from benchmarks.peers.wire import CHUNK_TOKENS, COMMIT_STORE, END_SESSION, PREPARE_STORE, Key, named

CHUNK_BYTES = 2 * MiB
BATCH = 16
MODEL = "bench/burst"
AFTER_S = 10.0
"""How long is waited for room after the burst."""


def run(larder: Peer, lmcache: Peer, effort: Effort) -> list[Result]:
    results = {}
    for peer in (larder, lmcache):
        peer.clear()
        peer.register(MODEL, CHUNK_BYTES)
        results[peer.name] = _burst(peer, effort)
        peer.clear()
    (dropped, full_s), (their_dropped, their_full_s) = results["larder"], results["lmcache"]
    return [
        at_most("burst_dropped_unseen", dropped, "chunks", 0, their_dropped),
        at_most("burst_full_pool", full_s, "s", 0, their_full_s),
    ]


def _burst(peer: Peer, effort: Effort) -> tuple[int, float]:
    """Chunks that were not taken although the answers say so, and seconds in which nothing new was taken."""
    requests = effort.pool_bytes * 3 // 2 // (BATCH * CHUNK_BYTES)
    dropped, full_s, full_since = 0, 0.0, 0.0
    for number in range(requests):
        accepted, stored = _store(peer, number)
        if stored:
            dropped += BATCH - accepted
        now = perf_counter()
        if accepted == 0:
            full_since = full_since or now
        elif full_since:
            full_s, full_since = full_s + now - full_since, 0.0
    number = requests
    until = perf_counter() + AFTER_S
    while full_since and perf_counter() < until:
        number += 1
        if _store(peer, number)[0]:
            break
    return dropped, full_s + (perf_counter() - full_since if full_since else 0.0)


def _store(peer: Peer, name: int) -> tuple[int, bool]:
    """Chunks for which there was room, and whether the client takes the answers for success. LMCache's takes an empty
    list of slots for one: all is there already."""
    key = Key(MODEL, prompt(BATCH * CHUNK_TOKENS, f"burst/{name}"), worker=0)
    request = peer.next_request()
    slots = peer.wire.ask(PREPARE_STORE, key.of(request), peer.instance)["context"].get("slots")
    if slots:
        stored = bool(peer.wire.ask(COMMIT_STORE, key.of(request), peer.instance, NO_BYTES))
    else:
        stored = slots is not None
    peer.wire.ask(END_SESSION, named(request))
    return len(slots or ()), stored
