"""What a disk tier costs a node: CPU of the data plane for each gigabyte that it copies to disk, and the time of a
look-up in memory while a tier is configured. Beside it, the CPU of plain O_DIRECT writes of the same sizes.
"""

import mmap
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.data_plane.lookups import BLOCK_BYTES as LOOKUP_BYTES
from benchmarks.data_plane.lookups import BLOCKS
from benchmarks.harness.memory import MiB
from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import FULL, Setting, attached, store
from benchmarks.harness.timing import Latency
from dataplane.client import Client
from dataplane.protocol.layout import U64
from dataplane.protocol.stats.tiers import TierStats
from dataplane.replay.control import ControlLink
from dataplane.replay.plane import Plane, own
from dataplane.tiers.header import HEADER_BYTES

BLOCK_BYTES = 2 * MiB
_TIER_BYTES = 4096 * MiB
_POOL_BYTES = 256 * MiB
_BATCH = 64
_WAIT_S = 120.0


class Cpu(NamedTuple):
    """CPU seconds of a process or a thread."""

    user_s: float
    system_s: float

    @property
    def total_s(self) -> float:
        return self.user_s + self.system_s

    def since(self, before: "Cpu", gigabytes: float = 1.0) -> "Cpu":
        """Return the seconds since `before`, divided by `gigabytes`."""
        return Cpu((self.user_s - before.user_s) / gigabytes, (self.system_s - before.system_s) / gigabytes)


def run(setting: Setting) -> list[Result]:
    """CPU seconds per 10^9 bytes, with those of plain writes as the baseline; the look-up's baseline is one of a data
    plane without a tier."""
    blocks = 1024 if setting.effort == FULL else 64
    effort = setting.effort
    keys = setting.new_keys(BLOCKS)
    with _node(_TIER_BYTES, LOOKUP_BYTES) as (_, tiered), _node(0, LOOKUP_BYTES) as (_, plain):
        for client in (tiered, plain):
            store(client, keys, LOOKUP_BYTES)
        latency = Latency(
            lambda: tiered.lookup(keys), lambda: plain.lookup(keys), runs=effort.runs, samples=effort.samples
        )
    with _node(_TIER_BYTES, BLOCK_BYTES) as (plane, client):
        spilling, lasted_s = _cpu(setting, plane, client, blocks, spilled=True)
    with _node(0, BLOCK_BYTES) as (plane, client):
        storing, _ = _cpu(setting, plane, client, blocks, spilled=False, lasts_s=lasted_s)
    gigabytes = blocks * BLOCK_BYTES / 1e9
    spill = spilling.since(storing, gigabytes)
    raw = _plain_writes(blocks).since(Cpu(0.0, 0.0), gigabytes)
    return [
        at_most("tier_spill_cpu_2MiB", spill.total_s, "s/GB", 0.25, raw.total_s),
        at_most("tier_spill_user_cpu_2MiB", spill.user_s, "s/GB", None, raw.user_s),
        at_most("tier_spill_system_cpu_2MiB", spill.system_s, "s/GB", None, raw.system_s),
        at_most("tier_lookup_64_p50", latency.us(50), "us", 1.05 * latency.baseline_us(50), latency.baseline_us(50)),
    ]


@contextmanager
def _node(tier_bytes: int, block_bytes: int) -> Iterator[tuple[Plane, Client]]:
    with (
        own(_POOL_BYTES, disk_tier_bytes=tier_bytes) as plane,
        attached(plane.engine_socket, block_bytes, checksums=False, verify="off") as client,
    ):
        yield plane, client


def _cpu(
    setting: Setting, plane: Plane, client: Client, blocks: int, *, spilled: bool, lasts_s: float = 0.0
) -> tuple[Cpu, float]:
    """CPU of the data plane while so many new blocks are stored and, if `spilled`, copied to its tier, and the seconds
    that this took. Without copies it takes `lasts_s`, so that the work of an idle data plane is in both."""
    assert plane.pid is not None
    assert plane.control_url is not None
    data = bytes(BLOCK_BYTES * _BATCH)
    with ControlLink(plane.control_url) as link:
        before, began = _cpu_of(plane.pid), time.monotonic()
        for at in range(0, blocks, _BATCH):
            _write(client, setting.new_keys(_BATCH), data)
            if spilled:
                _wait(link, at + _BATCH)
        while time.monotonic() < began + lasts_s:
            link.describe(_WAIT_S)
            time.sleep(0.25)
        return _cpu_of(plane.pid).since(before), time.monotonic() - began


def _plain_writes(blocks: int) -> Cpu:
    """CPU of writes of so many headers and blocks from shared memory to a preallocated file, with O_DIRECT."""
    shared = os.memfd_create("larder-bench")
    file, path = tempfile.mkstemp(prefix="larder-bench-")
    slot_bytes = HEADER_BYTES + BLOCK_BYTES
    try:
        os.posix_fallocate(file, 0, _BATCH * slot_bytes)
        os.ftruncate(shared, _BATCH * BLOCK_BYTES)
        with mmap.mmap(shared, _BATCH * BLOCK_BYTES) as memory, mmap.mmap(-1, HEADER_BYTES) as header:
            memory[:] = bytes(len(memory))
            direct = os.open(path, os.O_WRONLY | os.O_DIRECT)
            try:
                before = resource.getrusage(resource.RUSAGE_THREAD)
                for number in range(blocks):
                    at = number % _BATCH
                    with memoryview(memory) as view, view[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES] as data:
                        os.pwritev(direct, [header, data], at * slot_bytes)
                after = resource.getrusage(resource.RUSAGE_THREAD)
            finally:
                os.close(direct)
        return Cpu(after.ru_utime, after.ru_stime).since(Cpu(before.ru_utime, before.ru_stime))
    finally:
        os.unlink(path)
        os.close(file)
        os.close(shared)


def _write(client: Client, keys: U64, data: bytes) -> None:
    with client.reserve(keys, BLOCK_BYTES) as reservation:
        reservation.copy_from(data)
        reservation.commit()


def _wait(link: ControlLink, blocks: int) -> None:
    deadline = time.monotonic() + _WAIT_S
    while _tier(link).spilled_blocks < blocks:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the tier has {_tier(link)}, expected {blocks} blocks")
        time.sleep(0.25)  # each question costs the data plane time as well


def _tier(link: ControlLink) -> TierStats:
    return link.describe(_WAIT_S).stats.tiers[0]


def _cpu_of(pid: int) -> Cpu:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return Cpu(int(fields[11]) / ticks_per_s, int(fields[12]) / ticks_per_s)
