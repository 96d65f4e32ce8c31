"""The availability of the database, as its transactions end in any order."""

import time

from app.store.base.watch import DatabaseWatch


def watched() -> tuple[DatabaseWatch, list[bool]]:
    away: list[bool] = []
    return DatabaseWatch(lambda is_away, reason, seconds: away.append(is_away)), away


def test_many_failures_are_one_loss_and_one_recovery() -> None:
    watch, away = watched()
    for _ in range(3):
        watch.failed("read", "gone", time.monotonic())
    for _ in range(3):
        watch.worked("read", time.monotonic())
    assert away == [True, False]


def test_a_transaction_of_before_the_failure_is_no_recovery() -> None:
    watch, away = watched()
    began = time.monotonic()
    watch.failed("read", "gone", began)
    watch.worked("read", began)
    assert (watch.away, away) == (True, [True])


def test_a_transaction_of_before_the_recovery_is_no_second_loss() -> None:
    watch, away = watched()
    slow = time.monotonic()
    watch.failed("write", "gone", slow)
    watch.worked("write", time.monotonic())
    watch.failed("write", "gone", slow)
    assert (watch.away, away) == (False, [True, False])
    watch.failed("write", "gone again", time.monotonic())
    assert (watch.away, watch.refuses_changes, away) == (True, "gone again", [True, False, True])
