"""The command line as a process of its own, against a plane of the test."""

import asyncio
import os
import sys

from tests.app.plane import Plane


async def larder(plane: Plane, *arguments: str, typed: str = "", token: str = "") -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    environ = {**os.environ, "LARDER_URL": str(plane.http.base_url), "LARDER_TOKEN": token}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app", *arguments, env=environ,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(typed.encode()), 60)
    assert "Traceback" not in err.decode()
    return process.returncode or 0, out.decode(), err.decode()
