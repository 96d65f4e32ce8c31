"""Data planes, as in `tests/dataplane`."""

from tests.dataplane.conftest import make_plane

__all__ = ["make_plane"]
