"""One engine under load: `python -m tests.dataplane.load.engine ROLE SOCKET SEED REPORT`.

Its role is reader, writer, verifier, which writes, reads, and lets the client compare checksums too, or holder, which
writes, reads, and holds a chain of its own for its whole life: no read of that may miss.

Appends a line to REPORT for every wrong byte at once, and a line of counts twice a second, because it may be killed at
any time.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dataplane.client import Client, ClientEvent, attach
from dataplane.protocol.engine import SpaceRequest
from tests.dataplane import factories as make
from tests.dataplane.load.content import chain, expected, pick
from tests.sizes import size

HELD_BLOCKS = 8
HELD_BYTES = 16 << 10
PAUSE_S = size(0, 5) / 1000
"""Of a holder after each round: without it, holders take all of the time that the data plane needs to start again."""


class Report:
    """Lines that survive a kill: one write each."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.counts = {"blocks": 0, "stored": 0, "aborted": 0, "refused": 0}
        self._next = 0.0

    def wrong(self, what: str, key: bytes = b"") -> None:
        os.write(self._fd, json.dumps({"wrong": what, "key": key.hex()}).encode() + b"\n")

    def check(self, what: str, keys: list[bytes], nbytes: int, arrays: list[npt.NDArray[np.uint8]]) -> None:
        """Compare the leading blocks of a chain with what was stored."""
        for key, array in zip(keys, arrays, strict=False):
            if len(array) != nbytes or not (array == expected(key, nbytes)).all():
                self.wrong(what, key)

    def progress(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.5
            os.write(self._fd, json.dumps({"pid": os.getpid(), **self.counts}).encode() + b"\n")


def read(client: Client, rng: random.Random, report: Report) -> None:
    """Hold a chain, check every byte, wait, check every byte again: nothing may change under a lease."""
    keys, nbytes = chain(pick(rng))
    with client.acquire(keys) as lease:
        hits = len(lease)
        if not hits:
            return
        arrays = [lease.array(at) for at in range(hits)]
        for again in range(2):
            report.check(f"read {again}", keys, nbytes, arrays)
            if again == 0:
                time.sleep(rng.random() * 0.01)
        report.counts["blocks"] += hits


def write(client: Client, rng: random.Random, report: Report) -> None:
    """Store a chain's missing blocks in two halves with a pause between, and sometimes change one's mind."""
    number = pick(rng)
    keys, nbytes = chain(number)
    with client.reserve(keys, nbytes, tenant=f"t{number % 3}") as reservation:
        report.counts["refused"] += sum(reservation.refused.values())
        writable = reservation.writable
        arrays = [(reservation.array(at), expected(keys[at], nbytes)) for at in writable]
        for array, content in arrays:
            array[: nbytes // 2] = content[: nbytes // 2]
        if rng.random() < 0.3:
            time.sleep(rng.random() * 0.005)
        for array, content in arrays:
            array[nbytes // 2 :] = content[nbytes // 2 :]
        if rng.random() < 0.1:
            report.counts["aborted"] += len(writable)
            return
        report.counts["stored"] += reservation.commit().blocks


class Holder:
    """Holds a chain of its own, and reads it again."""

    def __init__(self, client: Client, seed: str) -> None:
        self._keys = make.keys(HELD_BLOCKS, ("held", seed))
        while len(lease := client.acquire(self._keys)) < HELD_BLOCKS:  # others may evict a block before it is held
            lease.release()
            with client.reserve(self._keys, HELD_BYTES, tenant="t0") as reservation:
                for at in reservation.writable:
                    reservation.array(at)[:] = expected(self._keys[at], HELD_BYTES)
                reservation.commit()
        self._lease = lease

    def __call__(self, client: Client, rng: random.Random, report: Report) -> None:
        with client.acquire(self._keys) as lease:
            if len(lease) < HELD_BLOCKS:
                report.wrong(f"of {HELD_BLOCKS} held blocks, {len(lease)} are found")
            report.check("held", self._keys, HELD_BYTES, [lease.array(at) for at in range(len(lease))])
        time.sleep(PAUSE_S)


def main(role: str, socket: str, seed: str, path: str) -> None:
    rng = random.Random(int(seed))
    report = Report(path)

    def hear(event: ClientEvent) -> None:
        if event.name in ("corrupt", "fault"):
            report.wrong(f"{event.name}: {event.detail}")

    roles: dict[str, list[Callable[[Client, random.Random, Report], None]]] = {"reader": [read], "writer": [write]}
    acts = roles.get(role, [write, read])
    client = attach(
        socket,
        [SpaceRequest(make.space(), writes=write in acts)],
        group=f"{role}-{seed}",
        timeout_s=30,
        verify="always" if role == "verifier" else "off",
        on_event=hear,
    )
    if role == "holder":
        acts.append(Holder(client, seed))
    while True:
        for act in acts:
            act(client, rng, report)
        report.progress()


if __name__ == "__main__":
    main(*sys.argv[1:])
