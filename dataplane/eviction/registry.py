"""The policies by name; the names themselves are part of the control protocol."""

from collections.abc import Callable, Mapping

from dataplane.eviction import EvictionPolicy
from dataplane.eviction.age_class import AgeClass
from dataplane.eviction.arc import Arc
from dataplane.eviction.fifo import Fifo
from dataplane.eviction.lfu import Lfu
from dataplane.eviction.lru import Lru
from dataplane.eviction.noop import Noop
from dataplane.eviction.s3fifo import S3Fifo
from dataplane.eviction.slru import Slru

POLICIES: Mapping[str, Callable[[], EvictionPolicy]] = {
    "lru": Lru,
    "age_class": AgeClass,
    "s3fifo": S3Fifo,
    "arc": Arc,
    "slru": Slru,
    "lfu": Lfu,
    "fifo": Fifo,
    "noop": Noop,
}
"""Makers, by the names of `protocol.control.ALGORITHMS`."""
