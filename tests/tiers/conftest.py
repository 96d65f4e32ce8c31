"""Closes the disk tiers of each test, and starts the processes of S3 tiers without their imports."""

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dataplane.tiers.s3 import worker_process
from tests.forked import Forked
from tests.tiers.disk_backend import DiskBackend


@pytest.fixture(autouse=True)
def closed_tiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(DiskBackend, "opened", [])
    yield
    for tier in DiskBackend.opened:
        tier.close()


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fork server start the processes of S3 tiers: two thirds of what such a test costs are their imports."""

    def start(command: list[str], *, start_new_session: bool, **options: Any) -> Forked:
        _, _, _, module, *arguments = command
        assert start_new_session
        return Forked(module, *arguments, **options)

    names = {**vars(subprocess), "Popen": start}
    monkeypatch.setattr(worker_process, "subprocess", SimpleNamespace(**names))
