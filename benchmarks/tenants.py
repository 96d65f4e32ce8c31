"""`python -m benchmarks.tenants CONVERSATION [SYNTHETIC]`: three tenants on one pool, under one scheme after the other.

Two tenants are traces in the Mooncake format; the third, a scanner, makes prompts that never come again, for twenty
minutes of the traces' time. Every request goes through a real client to a data plane process of its own, in the order
of the traces' times and without their pauses. What is measured is the share of a tenant's blocks that were hits.

Without SYNTHETIC a made-up trace stands in for it: documents that are asked for again and again, each time with a
question of its own.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from heapq import merge
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import click
import msgspec
from rich.console import Console
from rich.table import Table

from dataplane.client import attach
from dataplane.protocol.control.records import QuotaSpec, encode_quotas
from dataplane.protocol.layout import U64
from dataplane.replay.chains import DerivedChains
from dataplane.replay.control import ControlLink
from dataplane.replay.engine import ReplayEngine
from dataplane.replay.plane import Plane, own
from dataplane.replay.trace import read_trace
from dataplane.replay.worker import space_of

CONVERSATION, SYNTHETIC, SCANNER = "conversation", "synthetic", "scanner"
POOL_BLOCKS = 18_000
BLOCK_BYTES = 4096
TIMEOUT_S = 30.0
BURST_S = (1200.0, 2400.0)
SCANS_PER_S, SCAN_BLOCKS = 6.0, 40
DOCUMENTS, QUESTIONS, SPAN_S = 1100, 3993, 3537.0


class Request(NamedTuple):
    """One request of one tenant."""

    at: float
    """Seconds from the start of the traces."""
    tenant: str
    ids: tuple[int, ...]


class Score(msgspec.Struct):
    """Blocks of one tenant."""

    requested: int = 0
    hit: int = 0
    burst_requested: int = 0
    burst_hit: int = 0

    @property
    def ratio(self) -> float:
        return self.hit / max(1, self.requested)

    @property
    def burst_ratio(self) -> float:
        return self.burst_hit / max(1, self.burst_requested)


class Scheme(NamedTuple):
    """Quotas, and what a simulation of the same workload gave (`benchmarks/TENANTS.md` says which)."""

    name: str
    shares: Callable[[int], list[QuotaSpec]]
    """From the capacity in bytes."""
    expected: tuple[float, float, float, float]
    """Conversation in the whole run and in the burst, synthetic, and both together."""


def _limits(conversation: int, synthetic: int, scanner: int) -> Callable[[int], list[QuotaSpec]]:
    """Hard caps, in percent of the pool."""
    parts = {CONVERSATION: conversation, SYNTHETIC: synthetic, SCANNER: scanner}
    return lambda capacity: [QuotaSpec(name, limit_bytes=part * capacity // 100) for name, part in parts.items()]


def _floors(conversation: int, synthetic: int, scanner: int) -> Callable[[int], list[QuotaSpec]]:
    """Guaranteed parts, in percent of the pool; the rest is borrowed by whoever has least."""
    parts = {CONVERSATION: conversation, SYNTHETIC: synthetic, SCANNER: scanner}
    return lambda capacity: [QuotaSpec(name, floor_bytes=part * capacity // 100) for name, part in parts.items()]


def _weights(conversation: int, synthetic: int, scanner: int) -> Callable[[int], list[QuotaSpec]]:
    parts = {CONVERSATION: conversation, SYNTHETIC: synthetic, SCANNER: scanner}
    return lambda capacity: [QuotaSpec(name, weight=float(part)) for name, part in parts.items()]


SCHEMES = (
    Scheme("global LRU", lambda capacity: [], (0.1991, 0.0864, 0.2961, 0.2279)),
    Scheme("limits 50/40/10", _limits(50, 40, 10), (0.1946, 0.1897, 0.3509, 0.2410)),
    Scheme("floors 30/30/5", _floors(30, 30, 5), (0.1934, 0.1220, 0.3084, 0.2276)),
    Scheme("floors 50/40/5", _floors(50, 40, 5), (0.2116, 0.1897, 0.3585, 0.2552)),
    Scheme("weights 5/4/1", _weights(5, 4, 1), (0.2095, 0.1897, 0.3535, 0.2522)),
)


# ---- the workload


def from_trace(path: Path, tenant: str, limit: int | None) -> Iterator[Request]:
    """A trace's requests as one tenant's."""
    for request in read_trace(path, limit):
        yield Request(request.timestamp / 1e3, tenant, request.hash_ids)


def documents(seed: int = 0) -> Iterator[Request]:
    """The stand-in: a document of 2 to 200 blocks, some more popular than others, then 1 to 8 blocks of a question."""
    random = Random(seed)
    lengths = [min(200, max(2, int(random.lognormvariate(3.0, 0.6)))) for _ in range(DOCUMENTS)]
    popularity = [1 / (rank + 1) ** 0.55 for rank in range(DOCUMENTS)]
    fresh = count(1 << 32)
    for at in sorted(random.uniform(0, SPAN_S) for _ in range(QUESTIONS)):
        document = random.choices(range(DOCUMENTS), popularity)[0]
        question = [next(fresh) for _ in range(random.randint(1, 8))]
        ids = [document << 8 | part for part in range(lengths[document])]
        yield Request(at, SYNTHETIC, (*ids, *question))


def scans(seed: int = 1) -> Iterator[Request]:
    """Prompts that are requested once, during the burst."""
    random = Random(seed)
    fresh = count()
    at = BURST_S[0]
    while at < BURST_S[1]:
        yield Request(at, SCANNER, tuple(next(fresh) for _ in range(SCAN_BLOCKS)))
        at += random.expovariate(SCANS_PER_S)


# ---- a run


def run(scheme: Scheme, requests: list[Request], blocks: int) -> dict[str, Score]:
    """Serve all requests in order, through a client for each tenant. RuntimeError when bytes or accounts are wrong."""
    capacity = blocks * BLOCK_BYTES
    scores = {name: Score() for name in (CONVERSATION, SYNTHETIC, SCANNER)}
    with own(capacity, blocks) as plane, ExitStack() as clients:
        _put_in_force(plane, scheme.shares(capacity))
        engines = {name: _engine(plane, name, clients) for name in scores}
        chains = DerivedChains()
        for request in requests:
            keys: U64 = chains.keys(request.tenant, request.ids)
            hits = engines[request.tenant].serve(keys, request.tenant)
            score = scores[request.tenant]
            score.requested += len(keys)
            score.hit += hits
            if BURST_S[0] <= request.at < BURST_S[1]:
                score.burst_requested += len(keys)
                score.burst_hit += hits
        wrong_blocks = sum(engine.tally.verify_errors for engine in engines.values())
        faults = _faults(plane)
    if wrong_blocks or faults:
        raise RuntimeError(f"{wrong_blocks} wrong blocks; {'; '.join(faults)}")
    return scores


def _engine(plane: Plane, name: str, clients: ExitStack) -> ReplayEngine:
    client = attach(
        plane.engine_socket, [space_of(BLOCK_BYTES)], group=name, engine=f"tenants {name}", timeout_s=TIMEOUT_S
    )
    clients.callback(client.close)
    if not client.connected:
        raise RuntimeError("the data plane took no client")
    return ReplayEngine(client, BLOCK_BYTES)


def _put_in_force(plane: Plane, quotas: list[QuotaSpec]) -> None:
    assert plane.control_url is not None
    with ControlLink(plane.control_url) as link:
        link.hello(TIMEOUT_S)
        link.apply("quotas", encode_quotas(quotas), TIMEOUT_S)


def _faults(plane: Plane) -> list[str]:
    assert plane.control_url is not None
    with ControlLink(plane.control_url) as link:
        link.hello(TIMEOUT_S)
        return link.describe(TIMEOUT_S).faults


def figures(scores: dict[str, Score]) -> tuple[float, float, float, float]:
    """As `Scheme.expected`."""
    first, second = scores[CONVERSATION], scores[SYNTHETIC]
    useful = (first.hit + second.hit) / max(1, first.requested + second.requested)
    return first.ratio, first.burst_ratio, second.ratio, useful


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("conversation", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("synthetic", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--blocks", type=click.IntRange(min=1), default=POOL_BLOCKS, show_default=True)
@click.option("--limit", type=click.IntRange(min=1), help="Only the first requests of each trace.")
@click.option("--scheme", "names", multiple=True, type=click.Choice([scheme.name for scheme in SCHEMES]))
def main(conversation: Path, synthetic: Path | None, blocks: int, limit: int | None, names: tuple[str, ...]) -> None:
    """Hit ratios of three tenants under different quotas, beside those of a simulation."""
    second = documents() if synthetic is None else from_trace(synthetic, SYNTHETIC, limit)
    requests = list(
        merge(from_trace(conversation, CONVERSATION, limit), second, scans(), key=lambda request: request.at)
    )
    table = Table("scheme", "conversation", "in the burst", "synthetic", "useful")
    for scheme in SCHEMES:
        if names and scheme.name not in names:
            continue
        ratios = figures(run(scheme, requests, blocks))
        cells = [f"{ratio:.4f} ({expected:.4f})" for ratio, expected in zip(ratios, scheme.expected, strict=True)]
        table.add_row(scheme.name, *cells)
        print(f"{scheme.name}: {', '.join(cells)}", file=sys.stderr, flush=True)
    Console().print(table)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.tenants")
