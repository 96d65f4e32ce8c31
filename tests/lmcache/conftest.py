"""`gateway` is one over a core on bytearrays; `make_gateway` takes options of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dataplane.gateways.lmcache.zmtp import processes
from tests.dataplane.plane import Plane
from tests.lmcache.client import Client
from tests.lmcache.gateway import Gateway
from tests.lmcache.planes import gateway_plane


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> dict[str, processes.Owner]:
    """The process that clients of a gateway are of, under the name `owner`: unknown by default.

    They live in this very process, which the gateway does not look at. It would look for them in all others, each time
    that one connects.
    """
    owner = {"owner": processes.UNKNOWN}

    def owners_of(fds: Iterable[int]) -> dict[int, processes.Owner]:
        return dict.fromkeys(fds, owner["owner"])

    monkeypatch.setattr("dataplane.gateways.lmcache.zmtp.connections.owners_of", owners_of)
    monkeypatch.setattr("dataplane.gateways.lmcache.zmtp.processes.owners_of", owners_of)
    return owner


@pytest.fixture
def make_gateway(tmp_path: Path, owner: object) -> Iterator[Callable[..., Gateway]]:
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
def worker(client: Client) -> Client:
    """A connection on which a worker, number 7, has registered."""
    client.register()
    return client


@pytest.fixture
def plane(socket_dir: Path) -> Iterator[Plane]:
    """A data plane of 16 MiB, which has room for 1,024 chunks, with a gateway."""
    with gateway_plane(socket_dir) as running:
        yield running
