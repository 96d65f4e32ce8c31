"""Eviction policies by name. The names are part of the control protocol."""

from collections.abc import Callable, Mapping

from dataplane.policies import EvictionPolicy
from dataplane.policies.age_class import AgeClass
from dataplane.policies.arc import Arc
from dataplane.policies.fifo import Fifo
from dataplane.policies.lfu import Lfu
from dataplane.policies.lru import Lru
from dataplane.policies.noop import Noop
from dataplane.policies.s3fifo import S3Fifo
from dataplane.policies.slru import Slru

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
"""Policy constructors by the names in `protocol.control.records.ALGORITHMS`."""
