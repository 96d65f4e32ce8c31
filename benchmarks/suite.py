"""All benchmarks, by name, in the order in which they run."""

from collections.abc import Callable

from benchmarks import (
    apply,
    first_touch,
    fresh_pool,
    gpu,
    integrity,
    leases,
    lookups,
    policies,
    readers,
    reservations,
    rest,
    transfers,
    uptime,
    views,
)
from benchmarks.result import Result
from benchmarks.setting import Setting

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

BY_NAME: dict[str, Callable[[Setting], list[Result]]] = {"gpu": gpu.run}
"""Those that run when they are asked for alone: what they need, few machines have."""
