"""The disk tier does what every tier does, with O_DIRECT and without, in one directory and in three."""

from pathlib import Path

import pytest

from tests.tiers.conformance import Backend, TierConformance
from tests.tiers.disk_backend import DiskBackend


class TestDiskTier(TierConformance):
    @pytest.fixture(params=["one directory", "three directories", "buffered", "one thread"])
    def backend(self, request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
        if request.param == "three directories":
            return DiskBackend(tmp_path / "one", tmp_path / "two", tmp_path / "three")
        if request.param == "buffered":
            return DiskBackend(tmp_path / "one", direct_io="off")
        return DiskBackend(tmp_path / "one", threads=1 if request.param == "one thread" else 4)
