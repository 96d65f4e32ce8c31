"""Four engines that read at once: what they get together, and what that costs the data plane.

Each acquires chains of 64 resident blocks of 64 KiB and copies them out, again and again; then it only looks them up.
"""

import os
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.harness.result import Result, at_least, at_most
from benchmarks.harness.setting import Setting, attached
from dataplane.client import Client
from dataplane.protocol.layout import U64

ENGINES = 4
CHAIN = 64
CHAINS = 16
BLOCK_BYTES = 64 << 10
CPU_TARGET = 25.0
"""Percent of one core."""
_START_S = 30.0


def run(setting: Setting) -> list[Result]:
    """No baseline: memcpy of several processes at once depends on how many cores the machine lends."""
    seconds = 0.5 if setting.effort.runs == 1 else 4.0
    with setting.client(BLOCK_BYTES, 2 * CHAINS * CHAIN * BLOCK_BYTES) as client:
        chains = [setting.new_keys(CHAIN) for _ in range(CHAINS)]
        for keys in chains:
            with client.reserve(keys, BLOCK_BYTES) as reservation:
                reservation.copy_from(bytes(CHAIN * BLOCK_BYTES))
                if reservation.commit().blocks != CHAIN:
                    raise RuntimeError(f"expected {CHAIN} blocks to be stored: {reservation.refused}")
        socket, pid = setting.socket_of(client), setting.pid_of(client)
        reading, reading_cpu = _together(socket, chains, _read, seconds, pid)
        looking, looking_cpu = _together(socket, chains, _look_up, seconds, pid)
    return [
        at_least("readers_4_aggregate", reading * CHAIN * BLOCK_BYTES / 1e9, "GB/s", None),
        at_most("readers_4_data_plane_cpu", reading_cpu, "% of a core", CPU_TARGET),
        at_least("lookups_4_aggregate", looking, "lookups/s", None),
        at_most("lookups_4_data_plane_cpu", looking_cpu, "% of a core", CPU_TARGET),
    ]


def _together(
    socket: str, chains: list[U64], turn: Callable[[Client, U64, bytearray], int], seconds: float, pid: int
) -> tuple[float, float]:
    """Turns a second of all engines, and the data plane's percent of one core meanwhile."""
    context = get_context("spawn")
    engines = []
    for number in range(ENGINES):
        own_end, child_end = context.Pipe()
        process = context.Process(target=_engine, args=(child_end, socket, chains, turn, seconds, number))
        process.start()
        child_end.close()
        engines.append((process, own_end))
    try:
        for _, pipe in engines:
            if not pipe.poll(_START_S) or pipe.recv() != "ready":
                raise RuntimeError("an engine of the benchmark did not start")
        before, began = _cpu_s(pid), time.monotonic()
        for _, pipe in engines:
            pipe.send("go")
        rates = [pipe.recv() for _, pipe in engines]
        spent, passed = _cpu_s(pid) - before, time.monotonic() - began
    except EOFError:
        raise RuntimeError("an engine of the benchmark failed") from None
    finally:
        for process, pipe in engines:
            pipe.close()
            process.join(30)
    return sum(rates), 100 * spent / passed


def _engine(
    pipe: Connection,
    socket: str,
    chains: list[U64],
    turn: Callable[[Client, U64, bytearray], int],
    seconds: float,
    number: int,
) -> None:
    buffer = bytearray(CHAIN * BLOCK_BYTES)
    with attached(socket, BLOCK_BYTES, checksums=False, verify="off") as client:
        turn(client, chains[0], buffer)
        pipe.send("ready")
        pipe.recv()
        turns, began = 0, time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            if turn(client, chains[(turns + number) % len(chains)], buffer) != CHAIN:
                raise RuntimeError("expected every block to be there")
            turns += 1
        pipe.send(turns / passed)


def _read(client: Client, keys: U64, buffer: bytearray) -> int:
    with client.acquire(keys) as lease:
        lease.copy_to(buffer)
        return len(lease)


def _look_up(client: Client, keys: U64, buffer: bytearray) -> int:
    return client.lookup(keys)


def _cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
