"""Runtime of this machine, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable

from dataplane.devices.runtime import DeviceError, DeviceRuntime

FindRuntime = Callable[[], DeviceRuntime]
"""Creates the runtime of this process when it is first needed. Raises DeviceError."""
NO_BINDINGS = (
    "install a CUDA build of torch, which brings cuda-bindings: pip's own torch is one "
    "(pip install torch cuda-bindings)"
)


def find() -> DeviceRuntime:
    """Return the CUDA runtime. Loads the driver and takes several hundred MiB of each GPU in use. Raise DeviceError."""
    try:
        from dataplane.devices.cuda import Cuda

        return Cuda()
    except ImportError as error:
        raise DeviceError("load CUDA", f"no module {error.name}", NO_BINDINGS) from None
