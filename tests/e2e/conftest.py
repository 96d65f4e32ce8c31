"""`twin`, data planes that have its devices, and engines beside them."""

from tests.driven.conftest import make_engine, make_plane
from tests.gpu.machine_fixtures import twin

__all__ = ["make_engine", "make_plane", "twin"]
