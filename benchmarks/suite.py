"""All benchmarks, by name, in the order in which they run."""

from importlib import import_module

from benchmarks.harness.result import Result
from benchmarks.harness.setting import Setting

BENCHMARKS: dict[str, str] = {
    "lookups": "data_plane.lookups",
    "leases": "data_plane.leases",
    "reservations": "data_plane.reservations",
    "transfers": "data_plane.transfers",
    "readers": "data_plane.readers",
    "integrity": "data_plane.integrity",
    "first_touch": "data_plane.first_touch",
    "fresh_pool": "data_plane.fresh_pool",
    "views": "data_plane.views",
    "pages": "engines.pages",
    "connector": "engines.look_ups",
    "policies": "data_plane.policies",
    "sessions": "data_plane.sessions",
    "disk_transfers": "tiers.disk_transfers",
    "disk_recovery": "tiers.disk_recovery",
    "spilling": "tiers.spilling",
    "apply": "management_plane.apply",
    "rest": "management_plane.rest",
    "scrape": "management_plane.scrape",
    "observability": "management_plane.observability",
    "uptime": "management_plane.uptime",
}
"""Modules of this package, each with a function `run`."""

BY_NAME: dict[str, str] = {
    "gpu": "gpu.figures",
    "object_store": "ipc.store",
    "redis": "tiers.redis_transfers",
    "s3": "tiers.s3_transfers",
    "soak": "management_plane.soak",
}
"""Those that run when they are asked for alone: few machines have what they need, they take half an hour, or they
support a decision."""


def run(name: str, setting: Setting) -> list[Result]:
    """Run one benchmark. Its module is imported now: some import torch, which takes seconds."""
    module = (BENCHMARKS | BY_NAME)[name]
    results: list[Result] = import_module(f"benchmarks.{module}").run(setting)
    return results
