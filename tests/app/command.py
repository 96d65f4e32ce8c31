"""The command line as a process of its own, against a plane of the test."""

import asyncio
import os
import subprocess

from tests import forked
from tests.app.plane import Plane


async def larder(plane: Plane, *arguments: str, typed: str = "", token: str = "") -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    environ = {**os.environ, "LARDER_URL": str(plane.http.base_url), "LARDER_TOKEN": token}
    done = await asyncio.to_thread(run, *arguments, env=environ, typed=typed)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def run(*arguments: str, env: dict[str, str], typed: str = "", timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """A command, to its end."""
    return forked.run("app", *arguments, env=env, typed=typed, timeout=timeout)
