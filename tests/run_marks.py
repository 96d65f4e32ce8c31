"""Names that distinguish everything that a test run makes on this machine from the files and processes of others."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

MARK = "PYTEST_RUN_ID"
"""The environment variable that all processes of a run inherit. A run inside a run extends the outer run's value. It
does not begin with LARDER_, because tests remove such variables from the environment of processes that they start."""
SHARED_MEMORY = Path("/dev/shm")
MIN_MEMORY_BYTES = 4 << 30


def run_id() -> str:
    return os.environ[MARK]


def run_folder() -> Path:
    """Return the run's TMPDIR. Its path is short, because that of a unix socket has at most 107 characters.

    It is in memory where there is enough: most tests wait for a database's writes to be durable, which is not what they
    are about. `tmp_path` is on a disk.
    """
    memory = os.statvfs(SHARED_MEMORY)
    enough = memory.f_blocks * memory.f_frsize >= MIN_MEMORY_BYTES
    return (SHARED_MEMORY if enough else Path("/tmp")) / f"larder-{run_id()}"


def shm_name(key: object) -> str:
    """Return a name for a file in /dev/shm: the same for the same key, and different in every run."""
    return f"larder-{run_id()}-{sha256(str(key).encode()).hexdigest()[:12]}"


@contextmanager
def short_folder() -> Iterator[Path]:
    """A private folder with a short path. At the end it is removed, with the named segments of data planes in it and in
    its subfolders: one that was killed leaves its segment to the next data plane."""
    folder = Path(tempfile.mkdtemp(prefix=""))
    try:
        yield folder
    finally:
        for each in (folder, *folder.iterdir()):
            for prefix in ("", ".larder-"):  # the name, and the spare one
                (SHARED_MEMORY / f"{prefix}lmcache_l1_pool_{shm_name(each)}").unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
