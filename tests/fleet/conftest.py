"""A management plane, and data planes on machines of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.fleet import Fleet
from tests.fleet.network import require_namespaces


@pytest.fixture
def fleet(socket_dir: Path) -> Iterator[Fleet]:
    """A running management plane without nodes; everything is killed and removed after the test."""
    require_namespaces()
    made = Fleet(socket_dir)
    try:
        made.start()
        yield made
    finally:
        made.close()
