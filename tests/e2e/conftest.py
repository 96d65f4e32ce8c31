"""`emulated`, and patience with browsers."""

from collections.abc import Iterator

import pytest

from tests.gpu.machine_fixtures import emulated

__all__ = ["emulated"]
LIMIT_MS = 60_000
"""What takes milliseconds takes seconds on a busy machine."""


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the expectations of a test with a browser wait longer than by default."""
    if "browser" not in request.fixturenames:
        yield
        return
    from playwright.sync_api import expect

    expect.set_options(timeout=LIMIT_MS)
    yield
    expect.set_options(timeout=5_000)
