"""Stores for tests, and processes that use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dataplane.ipc.store import ShmObjectStore

WAIT_S = 60.0
"""Deadline of the lock in tests, on machines that are slow."""


@pytest.fixture
def make_store() -> Iterator[Callable[..., ShmObjectStore]]:
    """Return a function that creates a store; the stores are closed after the test."""
    made: list[ShmObjectStore] = []

    def new(budget_bytes: int = 1 << 20, **options: object) -> ShmObjectStore:
        options = {"timeout_s": WAIT_S, "max_objects": 64, "max_processes": 16, **options}
        made.append(ShmObjectStore.create(budget_bytes, **options))  # type: ignore[arg-type]
        return made[-1]

    yield new
    for store in made:
        store.close()


@pytest.fixture
def store(make_store: Callable[..., ShmObjectStore]) -> ShmObjectStore:
    return make_store()
