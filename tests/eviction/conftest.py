"""Every policy, by name: a test that takes `make` runs on each of them."""

from collections.abc import Callable

import pytest

from dataplane.policies import EvictionPolicy
from dataplane.policies.registry import POLICIES

Make = Callable[[], EvictionPolicy]


@pytest.fixture(params=list(POLICIES))
def make(request: pytest.FixtureRequest) -> Make:
    """A maker of empty policies."""
    return POLICIES[request.param]


@pytest.fixture(params=[name for name in POLICIES if name != "noop"])
def evicting(request: pytest.FixtureRequest) -> Make:
    """A maker of empty policies that do name victims."""
    return POLICIES[request.param]
