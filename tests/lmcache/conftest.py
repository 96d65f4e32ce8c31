"""`gateway` is one over a core on bytearrays; `make_gateway` takes options of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.plane import Plane
from tests.lmcache.client import Client
from tests.lmcache.gateway import Gateway
from tests.lmcache.planes import gateway_plane


@pytest.fixture
def make_gateway(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Gateways with these options; the accounts of each are consistent at the end."""
    made: list[Gateway] = []

    def new(**options: Any) -> Gateway:
        made.append(Gateway(tmp_path / f"lmcache-{len(made)}", **options))
        return made[-1]

    yield new
    faults = [fault for each in made for fault in each.bench.faults()]
    for each in made:
        each.close()
    assert not faults


@pytest.fixture
def gateway(make_gateway: Callable[..., Gateway]) -> Gateway:
    """8 MiB of memory."""
    return make_gateway()


@pytest.fixture
def client(gateway: Gateway) -> Client:
    """A connection to it."""
    return gateway.client()


@pytest.fixture
def plane(socket_dir: Path) -> Iterator[Plane]:
    """A data plane of 16 MiB, which has room for 1,024 chunks, with a gateway."""
    with gateway_plane(socket_dir) as running:
        yield running
