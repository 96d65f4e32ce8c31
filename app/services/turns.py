"""How a thread with much to do lets others have the interpreter.

A thread that computes gives it up when somebody has waited 5 ms. A request is answered in a dozen steps that each need
it again, so beside such a thread it takes a dozen times 5 ms; with pauses it takes what it always takes.
"""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

PAUSE_S = 0.0001
"""Long enough for who waits to wake up."""
T = TypeVar("T")


def giving_way(items: Iterable[T], every: int) -> Iterator[T]:
    """The items, with a pause after each so many of them. For threads only: the event loop would stand still."""
    for number, item in enumerate(items, 1):
        yield item
        if number % every == 0:
            time.sleep(PAUSE_S)
