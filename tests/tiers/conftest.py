"""Closes the disk tiers of each test."""

from collections.abc import Iterator

import pytest

from tests.tiers.disk_backend import DiskBackend


@pytest.fixture(autouse=True)
def closed_tiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(DiskBackend, "opened", [])
    yield
    for tier in DiskBackend.opened:
        tier.close()
