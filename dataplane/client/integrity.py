"""Verification of blocks against their checksums, on the reader's side.

The engine chooses whether all blocks, one of 64, or none are verified. Blocks that survived a crash of the data plane
are always verified once. This client treats a block found corrupt as a miss from then on, whatever the data plane does
with the report.
"""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Mapping
from typing import Literal

import numpy as np

from dataplane.client.attachment import Attachment
from dataplane.client.memory import SharedMapping
from dataplane.protocol.checksums import NONE, checksum
from dataplane.protocol.engine import CHECKSUM_BYTES
from dataplane.protocol.layout import (
    COLD_CHECKSUM,
    COLD_STORED_AT,
    H_ADOPTED_NS,
    HOT_CONTROL,
    HOT_SPACE_SEGMENT,
    I64,
    U64,
    Mask,
)

Verify = Literal["off", "sample", "always"]
VERIFY: tuple[Verify, ...] = ("off", "sample", "always")

SAMPLE_ONE_IN = 64
MAX_CORRUPT = 4096
"""Corrupt blocks that a client remembers; the oldest is forgotten first."""
REPORT_INTERVAL_S = 1.0
"""Seconds between reports of the same block while the data plane has not dropped it."""


class IntegrityChecks:
    """Verification state of one client. Threads may share it: a race only costs a redundant verification."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._until_sample = _gap() - 1 if verify == "sample" else 0
        self._verified: tuple[weakref.ref[Attachment], int, U64] | None = None
        """Attachment, time of its adoption, and control words of its adopted blocks that were verified, by
        descriptor."""
        self._corrupt: dict[tuple[int, int], float] = {}
        """Time from which each block may be reported again, by (descriptor, control word)."""

    def active(self, attachment: Attachment) -> bool:
        """Return whether any block may need verification. This check is the only cost for readers when none does."""
        return self._verify != "off" or attachment.index.cells[H_ADOPTED_NS] != 0 or bool(self._corrupt)

    def count_intact(
        self, attachment: Attachment, descriptors: I64, rows: U64, segments: Mapping[int, SharedMapping]
    ) -> int:
        """Return the number of leading held blocks before the first corrupt one. Unchosen blocks count as intact."""
        limit = self._known_corrupt(descriptors, rows)
        adopted, verified = self._adopted(attachment, descriptors, rows)
        chosen = adopted | self._chosen(len(rows))
        chosen[limit:] = False
        at = np.flatnonzero(chosen)
        if not len(at):
            return limit
        intact = self._first_wrong(attachment, descriptors[at], rows[at], segments)
        if verified is not None:
            verified[descriptors[at[:intact]]] = rows[at[:intact], HOT_CONTROL]
        if intact == len(at):
            return limit
        corrupt = int(at[intact])
        self._remember(int(descriptors[corrupt]), int(rows[corrupt, HOT_CONTROL]))
        return corrupt

    @staticmethod
    def _first_wrong(attachment: Attachment, descriptors: I64, rows: U64, segments: Mapping[int, SharedMapping]) -> int:
        """Return the position of the first block that does not match its checksum, or their number if all match."""
        stored = attachment.index.cold[descriptors, COLD_CHECKSUM : COLD_CHECKSUM + 2].tobytes()
        views = {number: segment.view() for number, segment in segments.items()}
        for at, (space_and_segment, offset, nbytes) in enumerate(rows[:, HOT_SPACE_SEGMENT:].tolist()):
            expected = stored[CHECKSUM_BYTES * at : CHECKSUM_BYTES * (at + 1)]
            if expected != NONE and expected != checksum(views[space_and_segment >> 32][offset : offset + nbytes]):
                return at
        return len(rows)

    def take_report(self, descriptor: int, control: int) -> bool:
        """Return whether to report a corrupt block now. If so, suppress further reports of it for a while."""
        now = time.monotonic()
        if self._corrupt.get((descriptor, control), 0.0) > now:
            return False
        self._corrupt[descriptor, control] = now + REPORT_INTERVAL_S
        return True

    def _remember(self, descriptor: int, control: int) -> None:
        self._corrupt.setdefault((descriptor, control), 0.0)
        while len(self._corrupt) > MAX_CORRUPT:
            self._corrupt.pop(next(iter(list(self._corrupt))), None)

    def _known_corrupt(self, descriptors: I64, rows: U64) -> int:
        """Return the number of leading blocks that are not known to be corrupt."""
        if not self._corrupt:
            return len(rows)
        seen = zip(descriptors.tolist(), rows[:, HOT_CONTROL].tolist(), strict=True)
        return next((at for at, block in enumerate(seen) if block in self._corrupt), len(rows))

    def _chosen(self, count: int) -> Mask:
        if self._verify == "always":
            return np.ones(count, np.bool_)
        chosen = np.zeros(count, np.bool_)
        if self._verify == "sample":
            at = self._until_sample
            while at < count:
                chosen[at] = True
                at += _gap()
            self._until_sample = at - count
        return chosen

    def _adopted(self, attachment: Attachment, descriptors: I64, rows: U64) -> tuple[Mask, U64 | None]:
        """Return which blocks survived a crash and have not been verified since, and the control words of those that
        were; None if no block of the attachment survived a crash."""
        adopted_ns = attachment.index.cells[H_ADOPTED_NS]
        if not adopted_ns:
            return np.zeros(len(rows), np.bool_), None
        verified = self._verified
        if verified is None or verified[:2] != (weakref.ref(attachment), adopted_ns):
            verified = weakref.ref(attachment), adopted_ns, np.zeros(attachment.index.max_blocks, np.uint64)
            self._verified = verified
        stored = attachment.index.cold[descriptors, COLD_STORED_AT] < np.uint64(adopted_ns)
        return np.asarray(stored & (verified[2][descriptors] != rows[:, HOT_CONTROL])), verified[2]


def _gap() -> int:
    """Return the distance from one sampled block to the next. Every block has the same chance."""
    return random.randint(1, 2 * SAMPLE_ONE_IN - 1)
