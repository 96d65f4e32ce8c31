"""A data plane of a release whose id journal was smaller, whatever `max_blocks` said."""

from __future__ import annotations

import sys

from dataplane.__main__ import main
from dataplane.recovery import adoption

vars(adoption)["half_bytes_for"] = lambda max_blocks: 32 << 20

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
