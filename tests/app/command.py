"""The command line against a plane of the test: in this process, or as a process of its own."""

import asyncio
import subprocess
import sys
import threading

import structlog
from click.testing import CliRunner

from app import cli
from tests import forked
from tests.app.plane import Plane

_one_at_a_time = threading.Lock()


async def larder(plane: Plane, *arguments: str, typed: str = "", token: str = "") -> tuple[int, str, str]:
    """Exit code, standard output, standard error of a command in a thread of this process, which has its imports."""
    environ = {"LARDER_URL": str(plane.http.base_url), "LARDER_TOKEN": token}
    return await asyncio.to_thread(_invoke, arguments, environ, typed)


async def output(plane: Plane, *arguments: str, typed: str = "", token: str = "") -> str:
    """Standard output of a command that succeeds and writes no error."""
    code, out, err = await larder(plane, *arguments, typed=typed, token=token)
    assert (code, err) == (0, ""), out + err
    return out


async def refused(plane: Plane, expected: int, *arguments: str, typed: str = "", token: str = "") -> str:
    """Standard error of a command that ends with this code and writes nothing else."""
    code, out, err = await larder(plane, *arguments, typed=typed, token=token)
    assert (code, out) == (expected, ""), out + err
    return err


def _invoke(arguments: tuple[str, ...], environ: dict[str, str], typed: str) -> tuple[int, str, str]:
    with _one_at_a_time:  # streams and environment are those of the process
        made = structlog.get_config()["logger_factory"]
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stdout))  # the plane logs meanwhile
        try:
            done = CliRunner().invoke(cli.larder, arguments, input=typed, env=environ, catch_exceptions=False)
        finally:
            structlog.configure(logger_factory=made)
    return done.exit_code, done.stdout, done.stderr


def run(*arguments: str, env: dict[str, str], typed: str = "", timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, to its end."""
    return forked.run("app", *arguments, env=env, typed=typed, timeout=timeout)
