"""Stores of an LMCache client into a pool that was never written, and their effect on another client.

Every pass has a new mapping, as every new worker has, so that passes differ only in the state of the pool.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median, quantiles

import httpx

from benchmarks.harness.memory import Mapping, MiB
from benchmarks.harness.result import Result, at_least, at_most
from benchmarks.harness.setting import TIMEOUT_S, Setting
from benchmarks.harness.timing import once_ns
from benchmarks.peers import servers
from benchmarks.peers.peer import NO_BYTES, SMALL_CHUNK_BYTES, Peer, prompt
from benchmarks.peers.servers import Server
from benchmarks.peers.wire import CHUNK_TOKENS, COMMIT_STORE, END_SESSION, PREPARE_STORE, Key, named

CHUNK_BYTES = 2 * MiB
BATCH_CHUNKS = 16
POOLS = 2
"""Size of the pool, as a multiple of the effort's pool."""
TURNS = 3
"""Number of fresh servers; the result is their median."""
OF_USED = 0.9
PROBE_PAUSE_S = 0.002
SETTLED_S = 0.5


def run(setting: Setting) -> list[Result]:
    """Return the results; the baselines are the same with a pool that was written before."""
    pool_bytes = POOLS * setting.effort.pool_bytes
    runs = range(min(TURNS, setting.effort.runs))
    turns = [_turn(pool_bytes, wait=True) for _ in runs]
    at_once = [_turn(pool_bytes, wait=False) for _ in runs]

    def middle(of: list[list[tuple[float, list[int]]]], at: int) -> float:
        return median(turn[at][0] for turn in of)

    def waits(of: list[list[tuple[float, list[int]]]], at: int, percentile: int) -> float:
        return median(_percentile(turn[at][1], percentile) / 1000 for turn in of)

    used = middle(turns, 1)
    return [
        at_least("store_fresh_pool", middle(turns, 0), "GB/s", None, used),
        at_least("store_fresh_pool_at_once", middle(at_once, 0), "GB/s", None, middle(at_once, 1)),
        at_least("store_fresh_pool_ratio", median(turn[0][0] / turn[1][0] for turn in turns), "of used", OF_USED),
        *(
            at_most(
                f"prepare_of_another_p{percentile}{name}",
                waits(of, 0, percentile),
                "us",
                None,
                waits(of, 1, percentile),
            )
            for name, of in (("", turns), ("_at_once", at_once))
            for percentile in (50, 99)
        ),
    ]


def _turn(pool_bytes: int, *, wait: bool) -> list[tuple[float, list[int]]]:
    """Fill a new pool twice. Return for each fill GB/s, and the times of `prepare_store` of another client in ns.
    `wait`: begin when the data plane has taken the memory ahead."""
    source = Mapping(CHUNK_BYTES)
    with servers.larder(pool_bytes) as server, closing(Peer(server)) as peer, closing(source):
        peer.register("bench/fresh", CHUNK_BYTES)
        if wait:
            _settle(server)
        passes = []
        for turn in range(2):
            peer.register("bench/fresh", CHUNK_BYTES)
            batches = pool_bytes * 9 // 10 // (CHUNK_BYTES * BATCH_CHUNKS)
            with _probed(server.rpc_url, turn) as (begin, waited):
                begin()
                keys = [_key(f"{turn}/{at}") for at in range(batches)]
                times_ns = [once_ns(partial(_store, peer, source, key)) for key in keys]
            passes.append((batches * BATCH_CHUNKS * CHUNK_BYTES / sum(times_ns), waited))
        return passes


def _settle(server: Server) -> None:
    """Wait until the data plane takes no more memory ahead."""
    deadline = time.monotonic() + TIMEOUT_S
    before, since = -1, time.monotonic()
    with httpx.Client(base_url=server.http_url, trust_env=False, timeout=30) as http:
        while time.monotonic() - since < SETTLED_S and time.monotonic() < deadline:
            (node,) = http.get("/api/v1/nodes").json()["items"]
            now = node["stats"]["pool"]["prefaulted_bytes"] if node["stats"] else 0
            if now != before:
                before, since = now, time.monotonic()
            time.sleep(0.05)


def _key(name: str) -> Key:
    return Key("bench/fresh", prompt(BATCH_CHUNKS * CHUNK_TOKENS, name), worker=0)


def _store(peer: Peer, source: Mapping, key: Key) -> None:
    number = peer.next_request()
    slots = peer.wire.ask(PREPARE_STORE, key.of(number), peer.instance)["context"].get("slots") or []
    if len(slots) != BATCH_CHUNKS:
        raise RuntimeError(f"room for {len(slots)} of {BATCH_CHUNKS} chunks")
    assert peer.pool is not None
    pool = ctypes.addressof(ctypes.c_char.from_buffer(peer.pool))
    for slot in slots:
        ctypes.memmove(pool + slot["offset"], source.address, slot["length"])
    if not peer.wire.ask(COMMIT_STORE, key.of(number), peer.instance, NO_BYTES):
        raise RuntimeError("a store was refused")
    peer.wire.ask(END_SESSION, named(number))


@contextmanager
def _probed(url: str, turn: int) -> Iterator[tuple[Callable[[], None], list[int]]]:
    """Run another client in its own process, which stores one small chunk after the other. The times of its
    `prepare_store` are in the list after the end."""
    own_end, child_end = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_probe, args=(url, turn, child_end), daemon=True)
    process.start()
    child_end.close()
    waited: list[int] = []

    def begin() -> None:
        own_end.recv()  # it is registered
        own_end.send(None)

    try:
        yield begin, waited
        own_end.send(None)
        waited += own_end.recv()
    finally:
        process.join(TIMEOUT_S)
        process.kill()
        own_end.close()


def _probe(url: str, turn: int, pipe: Connection) -> None:
    port = int(url.rpartition(":")[2])
    server = Server("larder", port, 0, None, None)  # type: ignore[arg-type]
    with closing(Peer(server)) as peer:
        peer._registrations = 100 + turn  # another worker than the one that fills the pool
        peer.register("bench/probe", SMALL_CHUNK_BYTES)
        keys = (Key("bench/probe", prompt(CHUNK_TOKENS, f"{turn}/{at}"), worker=0) for at in range(1 << 30))
        times_ns: list[int] = []
        pipe.send(None)
        pipe.recv()
        while not pipe.poll():
            key, number = next(keys), peer.next_request()
            argument = key.of(number)
            began = time.perf_counter_ns()
            peer.wire.ask(PREPARE_STORE, argument, peer.instance)
            times_ns.append(time.perf_counter_ns() - began)
            peer.wire.ask(COMMIT_STORE, argument, peer.instance, NO_BYTES)
            peer.wire.ask(END_SESSION, named(number))
            time.sleep(PROBE_PAUSE_S)
        pipe.recv()
        pipe.send(times_ns)


def _percentile(times_ns: list[int], percentile: int) -> float:
    return quantiles(times_ns, n=100)[percentile - 1]
