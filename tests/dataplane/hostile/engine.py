"""An honest engine of the soak: `python -m tests.dataplane.hostile.engine SOCKET SEED REPORT`.

Stores and reads, every byte checked twice: by the client against its checksum, here against what it must be. Appends
a line to REPORT at every wrong block at once, and its counts twice a second, because it may be killed at any time.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time

from dataplane.client import ClientEvent, attach
from tests.dataplane import factories as make
from tests.dataplane.hostile.content import CHAINS, read, store


def main(path: str, seed: str, report: str) -> None:
    rng = random.Random(int(seed))
    fd = os.open(report, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    counts = {"read": 0, "stored": 0}

    def tell(**fields: object) -> None:
        os.write(fd, json.dumps({"pid": os.getpid(), **fields}).encode() + b"\n")

    def hear(event: ClientEvent) -> None:
        if event.name in ("corrupt", "fault"):
            tell(wrong=f"{event.name}: {event.detail}")

    client = attach(path, [make.space()], group=f"honest-{seed}", timeout_s=30, verify="always", on_event=hear)
    report_at = 0.0
    while True:
        number = int(CHAINS * rng.random() ** 2)
        counts["stored"] += store(client, number)
        blocks, wrong = read(client, number)
        counts["read"] += blocks
        if wrong:
            tell(wrong=f"{wrong} blocks of chain {number}")
        if time.monotonic() > report_at:
            report_at = time.monotonic() + 0.5
            tell(**counts)


if __name__ == "__main__":
    main(*sys.argv[1:])
