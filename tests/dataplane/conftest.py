"""Data planes for tests: `plane` is one's own, `shared_plane` serves a whole file, `make_plane` takes settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.dataplane.plane import Manager, Plane
from tests.run_marks import short_folder


@pytest.fixture
def make_plane(socket_dir: Path) -> Iterator[Callable[..., Plane]]:
    """`make_plane(pool_bytes="1MiB", dataplane__max_clients="2")`: not started yet; killed after the test."""
    made: list[Plane] = []

    def new(**settings: str) -> Plane:
        folder = socket_dir / str(len(made)) if made else socket_dir
        folder.mkdir(exist_ok=True)
        made.append(Plane(folder, settings))
        return made[-1]

    yield new
    for each in made:
        each.kill()


@pytest.fixture
def plane(make_plane: Callable[..., Plane]) -> Plane:
    """A running data plane: 16 MiB in segments of 2 MiB."""
    return make_plane().start()


@pytest.fixture
def manager(plane: Plane) -> Iterator[Manager]:
    """A connection to the control socket of `plane`, which must survive the test."""
    with plane.manager() as manager:
        yield manager
    assert plane.alive, plane.log()
    assert "Traceback" not in plane.log()


@pytest.fixture(scope="module")
def shared_plane() -> Iterator[Plane]:
    """A running data plane that all tests of a file talk to; it must survive every one of them."""
    with short_folder() as folder:
        shared = Plane(folder).start()
        try:
            yield shared
            assert shared.alive, shared.log()
        finally:
            shared.kill()
