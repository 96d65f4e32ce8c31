"""The runtime of this machine, or why there is none."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dataplane.devices.runtime import DeviceError, Runtime

FindRuntime = Callable[[], Runtime]
"""Makes the runtime of this process, the first time that somebody needs it. Raises DeviceError."""
NO_BINDINGS = (
    "install a CUDA build of torch, which brings cuda-bindings: pip's own torch is one "
    "(pip install torch cuda-bindings)"
)


def find() -> Runtime:
    """CUDA's. Loads the driver and takes some hundred MiB of each GPU that is used. Raises DeviceError."""
    try:
        from dataplane.devices.cuda import Cuda

        return Cuda()
    except ImportError as error:
        raise DeviceError("load CUDA", f"no module {error.name}", NO_BINDINGS) from None


class Finder:
    """Finds once, and answers the same from then on. A refusal is not kept: a driver may come up later."""

    def __init__(self, make: FindRuntime = find) -> None:
        self._make = make
        self._found: Runtime | None = None
        self._lock = threading.Lock()

    def __call__(self) -> Runtime:
        with self._lock:
            if self._found is None:
                self._found = self._make()
            return self._found
