"""Data planes, and benches that are consistent at the end of a test, as in `tests/dataplane`."""

from tests.dataplane.bench_node import consistent
from tests.dataplane.conftest import make_plane, plane

__all__ = ["consistent", "make_plane", "plane"]
