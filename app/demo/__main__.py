"""`python -m app.demo`."""

import sys

from app.demo.command import main
from dataplane.base import entry_point

if __name__ == "__main__":
    sys.exit(entry_point.run(lambda: main(prog_name="larder demo"), "larder demo"))
