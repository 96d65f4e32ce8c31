"""Pages that tests store from a fake host pool, and load into other pages of one."""

from __future__ import annotations

from typing import Any

from tests.engines.sglang.fakes import MHATokenToKVPoolHost

NAMES = [f"{at:064x}" for at in range(20)]
SOURCE = list(range(3, 23))
TARGET = [*range(60, 40, -1)]


def content(pool: MHATokenToKVPoolHost, pages: list[int]) -> list[bytes]:
    return [pool.page(number) for number in pages]


def store(backend: Any, names: list[str] = NAMES, seed: int = 1) -> list[bytes]:
    """Store pages with bytes of their own; return the bytes."""
    pool = backend.mem_pool_host
    pool.fill(SOURCE[: len(names)], seed)
    assert backend.batch_set_v1(names, pool.indices(SOURCE[: len(names)])) == [True] * len(names)
    return content(pool, SOURCE[: len(names)])


def load(backend: Any, names: list[str] = NAMES) -> tuple[list[bool], list[bytes]]:
    """Load pages into others that are zero; return the answer and the bytes."""
    pool = backend.mem_pool_host
    pool.memory[:] = 0
    answer = backend.batch_get_v1(names, pool.indices(TARGET[: len(names)]))
    assert content(pool, [0, 1, 2, 63]) == [bytes(len(pool.page(0)))] * 4
    return answer, content(pool, TARGET[: len(names)])
