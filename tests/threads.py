"""Ends of threads that a test started."""

import threading

JOIN_S = 60.0


def join(*threads: threading.Thread) -> None:
    """Wait until all threads have ended. Fail with the names of those that still run after JOIN_S."""
    for thread in threads:
        thread.join(JOIN_S)
    alive = [thread.name for thread in threads if thread.is_alive()]
    assert not alive, f"threads that did not end in {JOIN_S:g} s: {', '.join(alive)}"
