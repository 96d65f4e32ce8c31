"""A data plane whose loop fails on SIGALRM with an error that nothing catches.

Run it with `python -m tests.restart.support.failing`.
"""

from __future__ import annotations

import signal
import sys

from dataplane.__main__ import main


class Defect(BaseException):
    """What serves a request catches every `Exception`, and the signal may arrive there."""


def fail(*_: object) -> None:
    raise Defect("a defect")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, fail)
    sys.exit(main())
