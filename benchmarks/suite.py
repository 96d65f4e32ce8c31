"""All benchmarks, by name, in the order in which they run."""

from collections.abc import Callable

from benchmarks.data_plane import (
    first_touch,
    fresh_pool,
    integrity,
    leases,
    lookups,
    policies,
    readers,
    reservations,
    transfers,
    views,
)
from benchmarks.gpu import paged_copies
from benchmarks.harness.result import Result
from benchmarks.harness.setting import Setting
from benchmarks.management_plane import apply, rest, uptime

BENCHMARKS: dict[str, Callable[[Setting], list[Result]]] = {
    "lookups": lookups.run,
    "leases": leases.run,
    "reservations": reservations.run,
    "transfers": transfers.run,
    "readers": readers.run,
    "integrity": integrity.run,
    "first_touch": first_touch.run,
    "fresh_pool": fresh_pool.run,
    "views": views.run,
    "policies": policies.run,
    "apply": apply.run,
    "rest": rest.run,
    "uptime": uptime.run,
}

BY_NAME: dict[str, Callable[[Setting], list[Result]]] = {"gpu": paged_copies.run}
"""Those that run when they are asked for alone: what they need, few machines have."""
