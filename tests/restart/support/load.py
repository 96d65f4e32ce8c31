"""Engines under load as processes of their own (`tests.restart.support.engine`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.forked import Forked


@contextmanager
def engine(path: str, seed: int) -> Iterator[subprocess.Popen[str]]:
    process = Forked(
        "tests.restart.support.engine", path, str(seed), env=dict(os.environ), stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
