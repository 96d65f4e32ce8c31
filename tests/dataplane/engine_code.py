"""An engine that runs the code of its first argument: `python -m tests.dataplane.engine_code CODE …`."""

import os
import signal
import sys
import time
from typing import Any

import dataplane.client
from dataplane.protocol.engine import SpaceRequest
from tests.dataplane import factories


def tell(text: object) -> None:
    """Print a line, which the test reads."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = sys.argv.pop(1)
    names: dict[str, Any] = {name: getattr(dataplane.client, name) for name in dataplane.client.__all__}
    names |= {"os": os, "signal": signal, "sys": sys, "time": time}
    names |= {"SpaceRequest": SpaceRequest, "make": factories, "tell": tell, "__name__": "__main__"}
    exec(compile(code, "engine_code", "exec"), names)
