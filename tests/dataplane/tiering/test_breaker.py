"""A tier that fails is out of service, and is tried again later and later."""

from dataplane.tiering.breaker import CHECK_S, FAILURES, FIRST_WAIT_S, LONGEST_WAIT_S, RECENT, Breaker


def test_failures_in_a_row_open_it_and_a_success_between_them_does_not() -> None:
    breaker = Breaker()
    for _ in range(3):
        for _ in range(FAILURES - 1):
            breaker.failed("slow", 0.0)
        assert breaker.serves
        breaker.succeeded()
    for _ in range(FAILURES):
        breaker.failed("slow", 0.0)
    assert (breaker.serves, breaker.reason, breaker.opened) == (False, "slow", 1)


def test_half_of_the_last_calls_that_fail_open_it_though_others_succeed_between_them() -> None:
    breaker = Breaker()
    for _ in range(RECENT):  # one in three: it serves on
        breaker.failed("slow", 0.0)
        breaker.succeeded()
        breaker.succeeded()
    assert breaker.serves
    for _ in range(RECENT):
        breaker.failed("slow", 0.0)
        breaker.succeeded()
    assert (breaker.reason, breaker.opened) == ("slow", 1)
    assert breaker.wants_probe(FIRST_WAIT_S)
    breaker.probed("", FIRST_WAIT_S)
    breaker.succeeded()
    breaker.failed("slow", 2.0)
    assert breaker.serves, "older calls do not count after a probe"


def test_probes_come_one_at_a_time_and_later_and_later() -> None:
    breaker, now, waits = Breaker(), 100.0, []
    breaker.failed("gone", now, whole=True)
    for _ in range(10):
        began = now
        while not breaker.wants_probe(now):
            now += 0.5
        assert not breaker.wants_probe(now), "one is under way"
        waits.append(now - began)
        breaker.probed("still gone", now)
    assert waits[0] == FIRST_WAIT_S
    assert waits[-1] == LONGEST_WAIT_S
    assert waits == sorted(waits)
    breaker.failed("a late one", now)
    assert breaker.reason == "still gone"


def test_after_a_probe_that_succeeds_the_next_failure_opens_it_again() -> None:
    breaker = Breaker()
    breaker.failed("gone", 0.0, whole=True)
    assert breaker.wants_probe(FIRST_WAIT_S)
    breaker.probed("", FIRST_WAIT_S)
    assert breaker.serves
    breaker.failed("gone again", 2.0)
    assert (breaker.serves, breaker.opened) == (False, 2)
    assert not breaker.wants_probe(2.0)


def test_a_tier_in_service_is_probed_too_and_a_failed_probe_opens_it() -> None:
    breaker, now = Breaker(), 100.0
    assert not breaker.wants_probe(now)
    assert breaker.wants_probe(now + CHECK_S)
    breaker.probed("", now + CHECK_S)
    assert breaker.serves
    assert not breaker.wants_probe(now + 2 * CHECK_S - 0.1)
    assert breaker.wants_probe(now + 2 * CHECK_S)
    breaker.probed("directory is gone", now + 2 * CHECK_S)
    assert (breaker.reason, breaker.opened) == ("directory is gone", 1)
    assert breaker.wants_probe(now + 2 * CHECK_S + FIRST_WAIT_S)


def test_a_probe_that_began_before_a_failure_does_not_close_the_breaker() -> None:
    breaker = Breaker()
    assert not breaker.wants_probe(1.0)
    assert breaker.wants_probe(1.0 + CHECK_S)
    breaker.failed("gone", 1.0 + CHECK_S, whole=True)
    breaker.probed("", 1.0 + CHECK_S)
    assert (breaker.reason, breaker.opened) == ("gone", 1)
    assert breaker.wants_probe(1.0 + CHECK_S + FIRST_WAIT_S)
