"""What every test may use: `require`, `golden`, `socket_dir`, `postgres_url`, `browser`, and asyncio for anyio."""

import ctypes
import faulthandler
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
import structlog
from _pytest.faulthandler import fault_handler_stderr_fd_key, get_timeout_config_value

from tests import require as requirement
from tests.forked import end_servers
from tests.golden_file import Golden
from tests.postgres_cluster import PostgresCluster, find_binaries
from tests.postgres_databases import Server, database_on
from tests.run_marks import short_folder
from tests.sizes import size

if TYPE_CHECKING:  # Playwright takes a fifth of a second to import: only who drives a browser pays it
    from playwright.sync_api import Browser

QUIET_CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    # One process for all pages: each of their servers is a site, and a process is most of what a page costs.
    "--renderer-process-limit=1",
    "--disable-site-isolation-trials",
    "--disable-features=IsolateOrigins,site-per-process",
]
pytest_plugins = ["tests.leftovers"]
MARKED_BY_FIXTURE = {"browser": pytest.mark.browser, "postgres_server": pytest.mark.postgres}


BROWSER_LIMIT_MS = 60_000
"""What a page shows in milliseconds takes seconds on a busy machine."""
MMAP_THRESHOLD = -3
"""glibc's number of the option for `mallopt`."""


def pytest_configure() -> None:
    # Each data plane has arrays of megabytes of zeros. glibc raises its threshold for mmap when such an array is freed,
    # and then clears the next one byte by byte, which costs more than the tests of the core themselves.
    ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, 1 << 20)
    # Tests start a thousand processes: without kept bytecode each of them compiles numpy and all of Larder anew, which
    # is half of its start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # numpy's threads, one per core, spin when a process starts, and do not survive a fork.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # A traceback with the values of all locals takes seconds to render on a busy machine, and a thread that logs one
    # does not end in time.
    *others, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    # A logger writes to the standard output of its beginning, not to that of a command that runs in this process.
    structlog.configure(processors=[*others, plain], logger_factory=structlog.WriteLoggerFactory())
    # A shell starts what it puts in the background with interrupts ignored, and children would inherit that: tests
    # interrupt them.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_pycollect_makemodule(module_path: Path) -> None:
    if b"hypothesis" in module_path.read_bytes():
        _examples_take_their_time()


@cache
def _examples_take_their_time() -> None:
    """The time that an example takes says how busy the machine is. Not when each run of pytest begins: Hypothesis takes
    most of a second to import."""
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "busy",
        parent=settings(),
        max_examples=size(100, 30),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("busy")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """End a process whose teardown hangs, with the stacks of its threads: pytest cancels `faulthandler_timeout` and
    pytest-timeout its timer when a test fails."""
    if limit_s := get_timeout_config_value(item.config):
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(limit_s, exit=True, file=stderr)
    return (yield)


def pytest_sessionfinish() -> None:
    end_servers()  # before it is looked for processes that tests left


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ (runs only tests that use it)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for fixture, marker in MARKED_BY_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)
    # Playwright's sync API keeps an event loop running in this thread until the browser is closed, and asyncio.run
    # refuses to work beside it: in a file with both, whoever drives a browser comes last.
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)
    if config.getoption("--update-golden"):
        chosen = [item for item in items if "golden" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def pytest_collection_finish() -> None:
    # Each management plane is a large cycle that is collected after its test: what lives as long as this process does
    # (thousands of tests, all modules) is not looked through each time.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def require() -> Callable[[object, str], None]:
    """`require(condition, reason)`: skip on a laptop that lacks something, fail in CI."""
    return requirement.require


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(name, text)`: the text must equal tests/golden/<name>."""
    return Golden(update=request.config.getoption("--update-golden"))


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """A private folder with a short path: a unix socket's path has at most 107 characters, and tmp_path is long."""
    with short_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """The machine's Chromium, one for each file: what runs next in this thread may need an event loop of its own."""
    from playwright.sync_api import expect, sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    requirement.require(chromium, "chromium is not installed (Debian: apt install chromium, or name one with CHROMIUM)")
    expect.set_options(timeout=BROWSER_LIMIT_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=chromium, args=QUIET_CHROMIUM, timeout=2 * BROWSER_LIMIT_MS
        )
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A running PostgreSQL for the session: gives the URL of a database name."""
    given = os.environ.get("TEST_DATABASE_URL")
    if given:
        server = sa.make_url(given).set(drivername="postgresql+asyncpg")
        yield lambda database: server.set(database=database).render_as_string(hide_password=False)
        return
    binaries = find_binaries()
    requirement.require(binaries, "no PostgreSQL server binaries (Debian: apt install postgresql)")
    assert binaries is not None
    cluster = PostgresCluster(binaries)
    try:
        cluster.start()
        yield cluster.url
    finally:
        cluster.stop()


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    """`postgresql+asyncpg://…` of an empty database that only this test sees; its name is unique."""
    with database_on(postgres_server) as name:
        yield postgres_server(name)
