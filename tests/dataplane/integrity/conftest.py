"""Each bench of a test must be consistent when the test ends."""

from tests.dataplane.bench_node import consistent

__all__ = ["consistent"]
