"""Calls of threads on the event loop."""

from __future__ import annotations

import threading
from functools import partial

from dataplane.io.loop import Loop
from tests.threads import join


def test_calls_of_a_thread_run_on_the_thread_of_the_loop_in_order() -> None:
    loop, ran = Loop(), list[tuple[int, threading.Thread]]()

    def note(number: int) -> None:
        ran.append((number, threading.current_thread()))

    def work() -> None:
        for number in range(3):
            loop.call_from_thread(partial(note, number))
        loop.call_from_thread(loop.stop)

    thread = threading.Thread(target=work)
    thread.start()
    loop.run()
    join(thread)
    loop.close()
    assert ran == [(number, threading.current_thread()) for number in range(3)]
    loop.call_from_thread(ran.clear)
    assert ran, "a closed loop takes no calls"


def test_a_wait_for_calls_runs_nothing_else_and_has_a_bound() -> None:
    loop, ran = Loop(), list[str]()
    loop.once(0.0, lambda: ran.append("timer"))
    threading.Timer(0.01, loop.call_from_thread, [lambda: ran.append("call")]).start()
    loop.wait_for_calls(lambda: bool(ran), 60.0)
    assert ran == ["call"]
    loop.wait_for_calls(lambda: False, 0.01)
    loop.close()
