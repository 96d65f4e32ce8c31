"""Databases on a PostgreSQL server, each with a name of its own."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

import asyncpg

WAIT_S = 60.0
Server = Callable[[str], str]
"""Gives the URL of a database name, as SQLAlchemy takes it."""


def new_name() -> str:
    return f"larder_{uuid4().hex[:12]}"


async def execute(url: str, *statements: str) -> None:
    """Execute the statements, each on its own, on one connection."""
    connection = await asyncpg.connect(url.replace("+asyncpg", "", 1))
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def execute_apart(url: str, *statements: str) -> None:
    """Do the same in another thread: that of the test may have a running loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, execute(url, *statements)).result()


def create(server: Server, name: str, template: str = "template1") -> None:
    """Create a database as a copy. PostgreSQL refuses it while a connection to the template ends, after 5 s."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return execute_apart(server("postgres"), f"CREATE DATABASE {name} TEMPLATE {template}")
        except asyncpg.ObjectInUseError:
            if time.monotonic() >= deadline:
                raise


@contextmanager
def database_on(server: Server, template: str = "template1") -> Iterator[str]:
    """A new database, a copy of `template`, which is dropped at the end. Gives its name."""
    name = new_name()
    create(server, name, template)
    try:
        yield name
    finally:
        execute_apart(server("postgres"), f"DROP DATABASE {name} WITH (FORCE)")
