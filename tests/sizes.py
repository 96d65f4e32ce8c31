"""How much of a costly thing a test does: as much as its name says in a full run (`make full`), less otherwise.

The smaller size walks through the same code; the full one is for releases, and for changes of what the test is about.
"""

import os

FULL = os.environ.get("LARDER_TEST_FULL") == "1"


def size(full: int, usual: int) -> int:
    """Return `full` in a full run, else `usual`."""
    return full if FULL else usual
