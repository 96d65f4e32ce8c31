"""`machine`: the emulated device, and a GPU where there is one; `emulated`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dataplane.devices.runtime import DeviceError
from tests.gpu.machines import Machine


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    try:
        made = Machine(request.param)
    except DeviceError as error:
        if os.environ.get("LARDER_TEST_GPU") == "required":  # `make gpu` must not pass by skipping
            raise
        pytest.skip(f"no GPU: {error}")
    yield made
    made.close()


@pytest.fixture
def emulated() -> Iterator[Machine]:
    """Only the emulated device: what has to be provoked."""
    made = Machine("emulated")
    yield made
    made.emulator.pace.resume()
    made.close()
