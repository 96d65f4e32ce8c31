"""What a test needs from the machine: skipped on a laptop that lacks it, a failure in CI.

from tests.require import require
require(shutil.which("promtool"), "promtool is not installed (Debian: apt install prometheus)")
"""

import os

import pytest

IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}


def require(condition: object, reason: str) -> None:
    """Go on when `condition` holds; else skip with `reason`, or fail with it when CI=true."""
    __tracebackhide__ = True
    if condition:
        return
    if IN_CI:
        pytest.fail(f"CI must have this: {reason}", pytrace=False)
    pytest.skip(reason)
