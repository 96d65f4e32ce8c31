"""Engines under load as processes of their own (`tests.dataplane.recovery.support.engine`)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.forked import Forked


@contextmanager
def engines(path: str, count: int) -> Iterator[Callable[[], None]]:
    """Engines under load, which end at a wrong byte. The function ends them, and asserts that each read blocks, and
    that its own were always there."""
    pipe = subprocess.PIPE
    processes = [
        Forked("tests.dataplane.recovery.support.engine", path, str(seed), env=dict(os.environ), stdout=pipe, text=True)
        for seed in range(count)
    ]

    def read_lines() -> list[str]:
        return [each.stdout.readline().strip() for each in processes if each.stdout is not None]

    def end() -> None:
        for each in processes:
            each.terminate()
        lines = read_lines()
        print(*lines)
        assert all(lines), "an engine read wrong bytes"
        seen = [json.loads(line) for line in lines]
        assert [each["own_misses"] for each in seen] == [0] * count
        assert all(each["verified_blocks"] > 0 for each in seen)

    try:
        assert read_lines() == ["begun"] * count
        yield end
    finally:
        for each in processes:
            each.kill()
            each.wait(60)
            assert each.stdout is not None
            each.stdout.close()
