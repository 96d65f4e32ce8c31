"""Guards of connectors' methods."""

import logging

import pytest

from dataplane.engines.guards import LOG_INTERVAL_S, ErrorLog, guarded
from tests.clock import Clock


class Connector:
    def __init__(self, clock: Clock) -> None:
        self.errors = ErrorLog(logging.getLogger("larder.test"), clock)

    @guarded(lambda: -1)
    def divide(self, by: int) -> int:
        return 6 // by


def test_errors_are_counted_and_logged_once_in_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    connector = Connector(clock)
    assert connector.divide(2) == 3
    with caplog.at_level(logging.ERROR, "larder.test"):
        assert [connector.divide(0) for _ in range(3)] == [-1] * 3
        assert len(caplog.records) == 1
        clock.now += LOG_INTERVAL_S
        assert connector.divide(by=0) == -1
    assert [each.getMessage() for each in caplog.records] == [
        "error in divide; the engine continues without the result of this call"
    ] * 2
    assert (connector.errors.take_count(), connector.errors.take_count()) == (4, 0)


def test_interrupts_are_not_caught() -> None:
    class Interrupted(Connector):
        @guarded()
        def pause(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupted(Clock()).pause()
