"""Look-ups: whole cycles with many in flight, and what one ping and one look-up cost."""

from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from time import perf_counter, perf_counter_ns

import numpy as np

from benchmarks.harness.result import Result, at_least, at_most
from benchmarks.harness.timing import time_ns
from benchmarks.peers import floor
from benchmarks.peers.effort import Effort
from benchmarks.peers.peer import SMALL_CHUNK_BYTES, Peer, prompt
from benchmarks.peers.wire import END_SESSION, FREE_LOCKS, LOOKUP, NOTHING, ONE, PING, STATUS, Key, Wire, named

IN_FLIGHT = 16
SIZES = {"1k": 1024, "16k": 16_384}
PROMPTS = {"1k": 64, "16k": 16}
MODEL = "bench/lookups"
CYCLES_TARGET = 5.0
LATENCY_TARGET = 1 / 3


def run(larder: Peer, lmcache: Peer, effort: Effort) -> list[Result]:
    """Every prompt is there, and none is that of the request before. The two servers take turns."""
    results = []
    peers = (larder, lmcache)
    for peer in peers:
        peer.register(MODEL, SMALL_CHUNK_BYTES)
    results += _latency("ping", [_pings(peer.wire) for peer in peers], effort)
    results += _floor(larder, effort)
    for name, tokens in SIZES.items():
        prompts = [prompt(tokens, number) for number in range(PROMPTS[name])]
        lookup_keys = [Key(MODEL, prompt_tokens, worker=None) for prompt_tokens in prompts]
        for peer in peers:
            for prompt_tokens in prompts:
                peer.store_unwritten(Key(MODEL, prompt_tokens, worker=0))
            if peer.found(lookup_keys[0]) != tokens // 256:
                raise RuntimeError(f"{peer.name} did not keep what was stored")
        results += _latency(f"lookup_{name}", [_lookups(peer, lookup_keys) for peer in peers], effort)
        rates: dict[str, list[float]] = {"larder": [], "lmcache": []}
        for turn in range(effort.rounds):
            for peer in peers if turn % 2 else reversed(peers):
                rates[peer.name].append(_cycles_per_s(peer, lookup_keys, effort.seconds))
        larder_rate, lmcache_rate = median(rates["larder"]), median(rates["lmcache"])
        ratio = median(a / b for a, b in zip(rates["larder"], rates["lmcache"], strict=True))
        results += [
            at_least(f"cycles_{name}", larder_rate, "/s", None, lmcache_rate),
            at_least(f"cycles_{name}_ratio", ratio, "x LMCache", CYCLES_TARGET),
        ]
    for peer in peers:
        peer.clear()
    return results


def _latency(name: str, samplings: list[Callable[[int], list[int]]], effort: Effort) -> list[Result]:
    """One in flight; runs of the two take turns. A sampling gives so many times in ns."""
    runs: tuple[list[list[int]], list[list[int]]] = ([], [])
    for sampling in samplings:
        sampling(20)
    for turn in range(effort.rounds):
        for at in (0, 1) if turn % 2 else (1, 0):
            runs[at].append(samplings[at](effort.samples))
    results = []
    for percentile in (50, 99):
        larder_us, lmcache_us = (
            median(float(np.percentile(run, percentile)) / 1e3 for run in peer_runs) for peer_runs in runs
        )
        results += [
            at_most(f"{name}_p{percentile}", larder_us, "us", None, lmcache_us),
            at_most(f"{name}_p{percentile}_ratio", larder_us / lmcache_us, "of LMCache", LATENCY_TARGET),
        ]
    return results


def _floor(larder: Peer, effort: Effort) -> list[Result]:
    """Pings of servers on libzmq that do nothing else, in turns with Larder's."""
    with ExitStack() as stack:
        wires = {f"zmq_echo_{how}": stack.enter_context(floor.echo(how)) for how in floor.HOW}
        samplings = {name: _pings(wire) for name, wire in {"larder": larder.wire, **wires}.items()}
        runs: dict[str, list[list[int]]] = {name: [] for name in samplings}
        for sampling in samplings.values():
            sampling(20)
        for _ in range(effort.rounds):
            for name, sampling in samplings.items():
                runs[name].append(sampling(effort.samples))
    results = []
    for percentile in (50, 99):
        times = {
            name: median(float(np.percentile(run, percentile)) / 1e3 for run in name_runs)
            for name, name_runs in runs.items()
        }
        results += [at_most(f"{name}_p{percentile}", times[name], "us", None, times["larder"]) for name in wires]
    return results


def _pings(wire: Wire) -> Callable[[int], list[int]]:
    return lambda times: time_ns(lambda: wire.ask(PING, NOTHING), times)


def _lookups(peer: Peer, keys: list[Key]) -> Callable[[int], list[int]]:
    """LOOKUP and its status; that the request then lets go and ends is not timed."""

    def sampling(times: int) -> list[int]:
        times_ns = []
        for _ in range(times):
            number = peer.next_request()
            key = keys[number % len(keys)]
            argument = key.of(number)
            started = perf_counter_ns()
            peer.wire.ask(LOOKUP, argument, ONE)
            peer.wire.status(number)
            times_ns.append(perf_counter_ns() - started)
            peer.wire.ask(FREE_LOCKS, argument, ONE)
            peer.wire.ask(END_SESSION, named(number))
        return times_ns

    return sampling


def _cycles_per_s(peer: Peer, keys: list[Key], seconds: float) -> float:
    """Look-up, status, free the locks, end: so many cycles a second, IN_FLIGHT at once."""
    wire = peer.wire
    waiting: dict[int, tuple[int, Key, int]] = {}
    """By number of the message: operation, key, request."""

    def begin() -> None:
        number = peer.next_request()
        key = keys[number % len(keys)]
        waiting[wire.send(LOOKUP, (key.of(number), ONE))] = (LOOKUP, key, number)

    for _ in range(IN_FLIGHT):
        begin()
    ended, started = 0, perf_counter()
    until = started + seconds
    while waiting:
        message, result = wire.receive()
        operation, key, number = waiting.pop(message)
        if operation == LOOKUP or (operation == STATUS and result in (None, NOTHING)):  # not known yet
            waiting[wire.send(STATUS, (named(number),))] = (STATUS, key, number)
        elif operation == STATUS:
            waiting[wire.send(FREE_LOCKS, (key.of(number), ONE))] = (FREE_LOCKS, key, number)
        elif operation == FREE_LOCKS:
            waiting[wire.send(END_SESSION, (named(number),))] = (END_SESSION, key, number)
        else:
            now = perf_counter()
            ended += 1
            if now < until:
                begin()
    return ended / (perf_counter() - started)
