"""`emulated`."""

from tests.gpu.machine_fixtures import emulated

__all__ = ["emulated"]
