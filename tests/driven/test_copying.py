"""Copies off the loop: in order within a lane, and no lane delays another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from dataplane.copies import copying
from dataplane.copies.copying import CopyFailed, CopyThreads
from dataplane.io.loop import Loop

MAX = 8


class Lane:
    """What work belongs to."""


class Bench:
    """Copies on a loop that turns when it is asked to."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.copying = CopyThreads(self.loop)
        self.ended: list[object] = []
        self.gate = threading.Event()

    def submit(self, name: object, lane: object | None, work: Callable[[], object] = lambda: None) -> bool:
        def run() -> None:
            work()

        def done(failed: CopyFailed | None) -> None:
            self.ended.append(name if failed is None else (name, str(failed)))

        return self.copying.submit(run, done, lane)

    def until(self, count: int) -> None:
        """So many have ended."""
        while len(self.ended) < count:
            self.loop.once(0.005, self.loop.stop)
            self.loop.run()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(copying, "MAX_WAITING", MAX)
    made = Bench()
    yield made
    made.gate.set()
    made.copying.close()
    made.loop.close()


def test_an_endless_wait_does_not_block_copies_of_others(bench: Bench) -> None:
    slow, quick = Lane(), Lane()
    assert all(bench.submit(at, slow, bench.gate.wait) for at in range(MAX))
    assert not bench.submit("more", slow)
    assert not bench.submit("of no lane", None)
    assert bench.submit("first", quick, bench.gate.wait)
    assert not bench.submit("second", quick)
    bench.gate.set()
    bench.until(MAX + 1)
    assert [each for each in bench.ended if each != "first"] == list(range(MAX))
    assert bench.submit("second", quick)
    assert bench.submit("of no lane", None)
    bench.until(MAX + 3)


def test_a_thread_that_cannot_be_had_is_a_refusal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lane = Lane()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert not bench.submit("refused", lane)
        assert not bench.submit("refused", None)
    assert bench.submit("later", lane)
    assert bench.submit("later", None)
    bench.until(2)
    assert bench.ended == ["later", "later"]


def test_work_that_crashes_is_a_copy_that_failed(bench: Bench) -> None:
    assert bench.submit("it", Lane(), lambda: [][0])
    bench.until(1)
    assert bench.ended == [("it", "IndexError: list index out of range")]
