"""A management plane, and data planes on machines of their own.

Starting all of it costs several seconds of a core, so most tests share one fleet and leave to `restore` what they
changed; a fleet that cannot be restored is thrown away, and the next test gets a new one. LARDER_TEST_KEEP=1 leaves the
folders with all logs in /tmp.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fleet.fleet import Fleet
from tests.fleet.network import Network, require_namespaces


class Shared:
    """The fleet of three that tests share."""

    def __init__(self) -> None:
        self.fleet: Fleet | None = None

    def take(self) -> Fleet:
        if self.fleet is None:
            self.fleet = make_fleet()
            self.fleet.manager().start()
            self.fleet.three()
        return self.fleet

    def give_back(self) -> None:
        if self.fleet is None:
            return
        try:
            self.fleet.restore()
        except (AssertionError, httpx.HTTPError):
            self.close()

    def close(self) -> None:
        fleet, self.fleet = self.fleet, None
        if fleet is not None:
            throw_away(fleet)


def make_fleet() -> Fleet:
    require_namespaces()
    return Fleet(Path(tempfile.mkdtemp(prefix="fleet-")), Network())


def throw_away(fleet: Fleet) -> None:
    fleet.close()
    fleet.network.close()
    if not os.environ.get("LARDER_TEST_KEEP"):  # logs, to look at after a failure
        shutil.rmtree(fleet.folder, ignore_errors=True)


@pytest.fixture(scope="package")
def shared() -> Iterator[Shared]:
    made = Shared()
    yield made
    made.close()


@pytest.fixture
def fleet(shared: Shared) -> Iterator[Fleet]:
    """One management plane, and the nodes `a`, `b` and `c`, in sync; shared with other tests."""
    try:
        yield shared.take()
    finally:
        shared.give_back()


@pytest.fixture
def empty_fleet() -> Iterator[Fleet]:
    """Machines to be; everything is killed and removed after the test."""
    made = make_fleet()
    try:
        yield made
    finally:
        throw_away(made)
