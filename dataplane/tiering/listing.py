"""Lists the blocks that a node wrote to a shared tier before it started. Runs on threads, while the tier serves.

A shared tier is listed once each time it is opened. A failed listing is tried again, at intervals that double. The list
of a faulty server may be endless or wrong. Therefore, a listing has a deadline and a maximum number of blocks, and does
not count blocks that other nodes wrote.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import structlog

from dataplane.core.tiering.catalog import Catalog
from dataplane.core.tiering.invalidations import Tombstone
from dataplane.protocol.stored_blocks import StoredBlock
from dataplane.tiering.background import Background
from dataplane.tiering.tier_run import TierRun

LIST_S = 3600.0
"""Deadline of one listing."""
PAGE_BLOCKS = 256
"""Maximum number of listed blocks, of all nodes, that wait for the loop."""
MAX_LISTED = 1 << 22
"""Maximum number of blocks that a node counts."""
FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 600.0
log = structlog.stdlib.get_logger()


class TierListing:
    """The listing of one tier. All methods run on the thread of the data plane."""

    def __init__(self, background: Background, catalog: Catalog, run: TierRun, clock: Callable[[], float]) -> None:
        self._background, self._catalog, self._run, self._clock = background, catalog, run, clock
        self._tier = run.worker.tier
        self._blocks: list[StoredBlock] = []
        self._under_way = self._complete = False
        self._wait_s, self._next_at = FIRST_WAIT_S, 0.0
        catalog.begin_listing(run.state)

    def step(self, now: float) -> None:
        """Begin to list the tier if that is due and the tier serves. `now` is a time of `time.monotonic`."""
        if self._under_way or self._complete or now < self._next_at or not self._run.serves:
            return
        self._under_way = True
        self._continue(self._tier.blocks(now + LIST_S))

    def _continue(self, blocks: Iterator[StoredBlock]) -> None:
        self._call(partial(_page, blocks), partial(self._listed, blocks))

    def _listed(self, blocks: Iterator[StoredBlock], page: list[StoredBlock]) -> None:
        self._blocks += self._catalog.listed(self._run.state, page, self._clock())
        if len(self._blocks) > MAX_LISTED:
            self._failed(f"the tier lists more than {MAX_LISTED:,} blocks of this node")
        elif page:
            self._continue(blocks)
        else:
            self._call(partial(_sort, self._blocks, list(self._run.state.tombstones())), self._sorted)

    def _sorted(self, result: tuple[list[StoredBlock], list[StoredBlock]]) -> None:
        slices = self._catalog.ending_listing(self._run.state, *result)
        self._background.in_slices(slices, partial(self._ended, len(result[1])))

    def _ended(self, dead: int) -> None:
        state = self._run.state
        self._under_way, self._complete = False, True
        self._run.listing_fault = ""
        log.info("tier.listed", tier=state.spec.name, blocks=len(self._blocks), invalidated=dead)
        self._blocks = []
        usage = self._tier.usage()
        if usage.foreign_objects:
            log.warning(
                "tier.foreign_objects",
                tier=state.spec.name,
                objects=usage.foreign_objects,
                first=usage.first_foreign,
                effect="they are skipped",
            )

    def _call(self, work: Callable[[], object], done: Callable[..., None]) -> None:
        def ended(result: object) -> None:
            if self._run.state.closing:
                return
            if isinstance(result, Exception):
                self._failed(str(result) or type(result).__name__)
            else:
                done(result)

        self._background.run(f"larder-tier-{self._run.state.spec.name}-list", work, ended)

    def _failed(self, reason: str) -> None:
        self._under_way = False
        self._next_at = time.monotonic() + self._wait_s
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        if reason != self._run.listing_fault:
            log.warning(
                "tier.not_listed",
                tier=self._run.state.spec.name,
                reason=reason,
                effect="not all blocks from before the start are counted; the listing is tried again",
            )
        self._run.listing_fault = reason


def _page(blocks: Iterator[StoredBlock]) -> list[StoredBlock]:
    return list(islice(blocks, PAGE_BLOCKS))


def _sort(
    blocks: Sequence[StoredBlock], tombstones: Sequence[Tombstone]
) -> tuple[list[StoredBlock], list[StoredBlock]]:
    """Return all blocks, newest first, and the blocks that a tombstone covers."""
    dead = {name for tombstone in tombstones for name in tombstone.among(blocks)}
    newest_first = sorted(blocks, key=lambda stored: stored.sequence, reverse=True)
    return newest_first, [stored for stored in blocks if stored.name in dead]
