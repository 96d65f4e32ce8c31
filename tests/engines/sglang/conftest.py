"""Backends for tests. Without `make engines` the tests with the real SGLang are not collected, which
test_environment.py reports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.conftest import make_plane, plane
from tests.dataplane.plane import Plane
from tests.engines.sglang.controller import PYTHON
from tests.engines.sglang.fakes import MHATokenToKVPoolHost, StorageConfig, fake_sglang

__all__ = ["make_plane", "plane"]

collect_ignore_glob = [] if PYTHON else ["test_real_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name.startswith("test_real_"):
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.full)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def backend_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The backend's class, beside fakes of SGLang's modules."""
    fake_sglang(monkeypatch)
    yield import_module("dataplane.engines.sglang.backend").LarderBackend
    sys.modules.pop("dataplane.engines.sglang.backend", None)


@pytest.fixture
def make_backend(backend_class: Any, plane: Plane) -> Iterator[Callable[..., Any]]:
    """`make_backend(pool, config={"tp_rank": 1}, verify="always")`: a backend with settings `larder.*`, attached to the
    data plane of the test."""
    made: list[Any] = []

    def new(pool: Any = None, config: dict[str, Any] | None = None, **settings: Any) -> Any:
        given = {"socket": plane.socket, "timeout_s": 5.0, **settings}
        extra = {"interface_v1": 1, **{f"larder.{name}": value for name, value in given.items()}}
        made.append(backend_class(StorageConfig(extra, **(config or {})), {}))
        made[-1].register_mem_pool_host(MHATokenToKVPoolHost() if pool is None else pool)
        return made[-1]

    yield new
    for each in made:
        each.close()


@pytest.fixture
def backend(make_backend: Callable[..., Any]) -> Any:
    return make_backend()
