"""Small pools of one block size, shared by tenants."""

from __future__ import annotations

from typing import Any

from dataplane.protocol.spaces import Space
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine

PAGE = 4096


def bench_of(blocks: int, *, spaces: tuple[Space, ...] = (), **options: Any) -> tuple[Bench, BenchEngine]:
    """A pool of so many blocks of a page, and an engine that is attached to it."""
    bench = Bench(blocks * PAGE, **options)
    return bench, bench.attach(*spaces)


def fill(engine: BenchEngine, tenant: str, blocks: int, name: object = "fill") -> int:
    """Store blocks of a tenant that were not requested before, eight at a time; returns how many were written."""
    return sum(
        engine.store(make.keys(min(8, blocks - first), (name, tenant, first)), PAGE, tenant=tenant).written
        for first in range(0, blocks, 8)
    )


def held(bench: Bench, tenant: str) -> int:
    """Blocks of a page that a tenant is charged for."""
    return bench.node.pool.tenants.get(tenant).bytes // PAGE
