"""A data plane that is killed while a store of its gateway waits for memory:
`python -m tests.restart.support.killed_while_waiting`."""

from __future__ import annotations

import os
import signal
import sys
import time

from dataplane.__main__ import main
from dataplane.memory.pages import PageTaker

KILLED_AFTER_S = 2.0
"""The request is written down by then."""


def take(self: PageTaker, offset: int, nbytes: int) -> None:
    time.sleep(KILLED_AFTER_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    PageTaker.take = take  # type: ignore[method-assign]
    sys.exit(main())
