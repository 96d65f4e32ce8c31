"""Storing and retrieving through shared memory over the wire, with no more than the protocol and one copy.

Memcpy, which they are held against, copies the same pieces in the same direction between memory that was touched, too.
"""

import ctypes
from functools import partial
from statistics import median

from benchmarks.harness.memory import Memcpy, MiB
from benchmarks.harness.result import Result, at_least
from benchmarks.harness.timing import once_ns
from benchmarks.peers.effort import Effort
from benchmarks.peers.peer import NO_BYTES, Peer, prompt
from benchmarks.peers.wire import (
    CHUNK_TOKENS,
    COMMIT_RETRIEVE,
    COMMIT_STORE,
    END_SESSION,
    LOOKUP,
    ONE,
    PREPARE_RETRIEVE,
    PREPARE_STORE,
    Key,
    named,
)

SIZES = {"2MiB": 2 * MiB, "32MiB": 32 * MiB}
OVER_LMCACHE = 1.3
"""At 2 MiB, where the protocol counts."""
OF_MEMCPY = 0.9
"""At 32 MiB, where the copy does."""


def run(larder: Peer, lmcache: Peer, effort: Effort) -> list[Result]:
    results = []
    for name, chunk_bytes in SIZES.items():
        chunks = min(effort.batch_chunks, effort.pool_bytes // 4 // chunk_bytes)
        with_pool = _Batch(name, chunk_bytes, chunks, effort)
        try:
            results += with_pool.measure((larder, lmcache))
        finally:
            with_pool.close()
    return results


class _NoRoom(RuntimeError):
    """A store was not taken whole."""


class _Batch:
    """Batches of one size of chunks."""

    def __init__(self, name: str, chunk_bytes: int, chunks: int, effort: Effort) -> None:
        self._name = name
        self._model = f"bench/transfers/{name}"
        self._chunk_bytes = chunk_bytes
        self._chunks = chunks
        self._effort = effort
        self._nbytes = chunks * chunk_bytes
        self._memcpy = Memcpy(self._nbytes, effort.pool_bytes, chunk_bytes)
        self._prompts = 0
        self._retained = 0
        """Bytes that LMCache's server has."""

    def close(self) -> None:
        self._memcpy.close()

    def measure(self, peers: tuple[Peer, Peer]) -> list[Result]:
        for peer in peers:
            peer.clear()
            peer.register(self._model, self._chunk_bytes)
            self._fill(peer)
        stored: dict[str, list[float]] = {peer.name: [] for peer in peers}
        read: dict[str, list[float]] = {peer.name: [] for peer in peers}
        into: list[float] = []
        out: list[float] = []
        for turn in range(self._effort.rounds):
            into.append(self._nbytes / once_ns(self._memcpy.into_arena))
            out.append(self._nbytes / once_ns(self._memcpy.out_of_arena))
            for peer in peers if turn % 2 else reversed(peers):
                tokens = self._next_prompt()
                store, retrieve = self._key(tokens, 0), self._key(tokens, None)
                stored[peer.name].append(self._nbytes / once_ns(partial(self._store, peer, store)))
                read_ns = once_ns(partial(self._retrieve, peer, store, retrieve))
                read[peer.name].append(self._nbytes / read_ns)
                self._make_room(peer)
        return [*self._results("store", stored, median(into)), *self._results("retrieve", read, median(out))]

    def _results(self, operation: str, speeds: dict[str, list[float]], memcpy: float) -> list[Result]:
        larder_gbps, lmcache_gbps = median(speeds["larder"]), median(speeds["lmcache"])
        name = f"{operation}_{self._name}"
        small = self._chunk_bytes == 2 * MiB
        return [
            at_least(name, larder_gbps, "GB/s", None, lmcache_gbps),
            at_least(f"{name}_ratio", larder_gbps / lmcache_gbps, "x LMCache", OVER_LMCACHE if small else None),
            at_least(f"{name}_of_memcpy", larder_gbps / memcpy, "of memcpy", None if small else OF_MEMCPY, memcpy),
        ]

    def _fill(self, peer: Peer) -> None:
        """Store until every byte of the pool was written once: a first touch costs ten times a copy."""
        for _ in range(-(-self._effort.pool_bytes * 5 // 4 // self._nbytes)):
            try:
                self._store(peer, self._key(self._next_prompt(), 0))
            except _NoRoom:
                break
        if peer.name == "lmcache":
            peer.clear()
            self._retained = 0

    def _make_room(self, peer: Peer) -> None:
        """Larder's server makes room when it is asked for some. LMCache's drops what comes when it is full and evicts
        once a second beyond four fifths: it is emptied before, and goes through its memory as Larder's does."""
        if peer.name == "lmcache" and self._retained + 2 * self._nbytes > self._effort.pool_bytes * 0.8:
            peer.clear()
            self._retained = 0

    def _next_prompt(self) -> list[int]:
        self._prompts += 1
        return prompt(self._chunks * CHUNK_TOKENS, f"{self._name}/{self._prompts}")

    def _key(self, tokens: list[int], worker: int | None) -> Key:
        return Key(self._model, tokens, worker=worker)

    def _store(self, peer: Peer, key: Key) -> None:
        number = peer.next_request()
        slots = peer.wire.ask(PREPARE_STORE, key.of(number), peer.instance)["context"].get("slots") or []
        if len(slots) != self._chunks:
            raise _NoRoom(f"{peer.name} gave room for {len(slots)} of {self._chunks} chunks")
        self._copy(peer, slots, out=False)
        if not peer.wire.ask(COMMIT_STORE, key.of(number), peer.instance, NO_BYTES):
            raise RuntimeError(f"{peer.name} refused a store")
        self._retained += self._nbytes * (peer.name == "lmcache")
        peer.wire.ask(END_SESSION, named(number))

    def _retrieve(self, peer: Peer, key: Key, lookup_key: Key) -> None:
        number = peer.next_request()
        peer.wire.ask(LOOKUP, lookup_key.of(number), ONE)
        if peer.wire.status(number) != self._chunks:
            raise RuntimeError(f"{peer.name} lost what was stored")
        prepared = peer.wire.ask(PREPARE_RETRIEVE, key.of(number), peer.instance)
        if not prepared["success"]:
            raise RuntimeError(f"{peer.name} refused a retrieval")
        self._copy(peer, prepared["context"]["slots"], out=True)
        peer.wire.ask(COMMIT_RETRIEVE, key.of(number), peer.instance)
        peer.wire.ask(END_SESSION, named(number))

    def _copy(self, peer: Peer, slots: list[dict[str, int]], *, out: bool) -> None:
        assert peer.pool is not None
        pool = ctypes.addressof(ctypes.c_char.from_buffer(peer.pool))
        engine = self._memcpy.engine.address
        for at, slot in enumerate(slots):
            buffer, slot_address = engine + at * self._chunk_bytes, pool + slot["offset"]
            ctypes.memmove(*((buffer, slot_address) if out else (slot_address, buffer)), slot["length"])
