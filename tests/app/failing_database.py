"""A database that fails in every transaction."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from sqlalchemy import event
from sqlalchemy.engine import Engine


@contextmanager
def fails_at(step: Literal["begin", "commit"], error: Exception) -> Iterator[None]:
    def fail(_: object) -> None:
        raise error

    event.listen(Engine, step, fail)
    try:
        yield
    finally:
        event.remove(Engine, step, fail)
