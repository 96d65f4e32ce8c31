"""Copies blocks from one tier to another. A thread of the source loads a batch into a buffer; then a thread of the
target stores it.

There is one buffer at a time, which has the size of a batch (`dataplane.core.tiering.transfers`). A call that does not
return in time is given up, and the next batch begins. Such a call keeps its buffer. It also takes its tier out of
service, so there is at most about one such call for each tier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from dataplane.core.tiering.tiering import Tiering
from dataplane.core.tiering.transfers import PlannedTransfer
from dataplane.protocol.stored_blocks import CopyEnd, Loaded, Outcome, StoredBlock
from dataplane.tiering.encoding import CALL_S, BlockBytes, TierCodec, store_blocks
from dataplane.tiering.tier_run import TierRun
from dataplane.tiering.worker import HANG_S
from dataplane.tiers.tier import BlockLoad, Tier, TierError

GIVE_UP_S = CALL_S + HANG_S
"""Seconds after which a call that loads or stores a batch is given up."""


class TransferCall:
    """A call that loads or stores a batch."""

    def __init__(self, plans: Sequence[PlannedTransfer], *, stores: bool) -> None:
        self.plans, self.stores = plans, stores
        self.until = time.monotonic() + GIVE_UP_S
        self.given_up = False
        """Whether the call is not waited for any more. If its thread has not begun, it does nothing."""


class TransferRunner:
    """Begins transfers and reports their ends. All methods run on the thread of the data plane."""

    def __init__(
        self,
        tiering: Tiering,
        clock: Callable[[], float],
        runs: Sequence[TierRun],
        judge: Callable[[TierRun, object, Sequence[Outcome]], None],
    ) -> None:
        """`runs` are the tiers in use, and may change later. `judge` is called with the result of each call."""
        self._tiering, self._clock, self._runs, self._judge = tiering, clock, runs, judge
        self._call: TransferCall | None = None
        """The call that is waited for."""

    def step(self) -> None:
        """Give up a call that has not returned in time."""
        call = self._call
        if call is None or time.monotonic() < call.until:
            return
        self._call, call.given_up = None, True
        if call.stores:
            self._tiering.transfers.store_hung(call.plans)
        else:
            self._tiering.transfers.load_hung(call.plans)

    def begin(self, now: float) -> None:
        """Begin the next batch, unless one is under way or no blocks wait."""
        plans = self._tiering.transfers.next_batch(now)
        if not plans:
            return
        run, target = (
            next(run for run in self._runs if run.state is state) for state in (plans[0].source, plans[0].target)
        )
        buffer = memoryview(bytearray(sum(plan.stored.length for plan in plans)))
        buffers, at = [], 0
        for plan in plans:
            buffers.append(buffer[at : at + plan.stored.length])
            at += plan.stored.length
        call = self._call = TransferCall(plans, stores=False)
        run.worker.submit("load", partial(_load, call, buffers), partial(self._loaded, run, target, call, buffers))

    def _loaded(
        self,
        run: TierRun,
        target: TierRun,
        call: TransferCall,
        buffers: Sequence[memoryview],
        result: list[Loaded] | TierError,
    ) -> None:
        plans = call.plans
        if call.given_up:
            self._judge(run, result, ())
            return
        self._call = None
        outcomes = (
            [Outcome.FAILED] * len(plans)
            if isinstance(result, TierError)
            else [_outcome(plan, each) for plan, each in zip(plans, result, strict=True)]
        )
        failed = [(plan, outcome) for plan, outcome in zip(plans, outcomes, strict=True) if outcome is not Outcome.OK]
        self._tiering.transfers.not_loaded([plan for plan, _ in failed], [outcome for _, outcome in failed])
        self._judge(run, result, outcomes)
        if isinstance(result, TierError):
            return
        fulfilled = [
            (plan, loaded_bytes, loaded)
            for plan, loaded_bytes, loaded, outcome in zip(plans, buffers, result, outcomes, strict=True)
            if outcome is Outcome.OK
        ]
        if not fulfilled:
            return
        stored = [plan for plan, _, _ in fulfilled]
        if target.state.closing:
            self._tiering.transfers.ended(stored, [CopyEnd(Outcome.FAILED)] * len(stored), self._clock())
            return
        spaces = self._tiering.space_numbers()
        blocks = [
            BlockBytes(_as_loaded(plan, loaded), loaded_bytes, self._tiering.form(spaces.get(plan.stored.name.space)))
            for plan, loaded_bytes, loaded in fulfilled
        ]
        call = self._call = TransferCall(stored, stores=True)
        store = partial(_store, call, blocks, target.codec)
        target.worker.submit("copy", store, partial(self._stored, target, call))

    def _stored(self, target: TierRun, call: TransferCall, result: list[CopyEnd] | TierError) -> None:
        if self._call is call:
            self._call = None
        plans = call.plans
        ends = [CopyEnd(Outcome.FAILED)] * len(plans) if isinstance(result, TierError) else result
        self._tiering.transfers.ended(plans, ends, self._clock())
        self._judge(target, result, [end.outcome for end in ends])


def _load(call: TransferCall, buffers: Sequence[memoryview], tier: Tier) -> list[Loaded]:
    if call.given_up:
        return [Loaded(Outcome.LATE)] * len(call.plans)
    loads = [BlockLoad(plan.stored.name, loaded_bytes) for plan, loaded_bytes in zip(call.plans, buffers, strict=True)]
    return tier.load(loads, time.monotonic() + CALL_S)


def _store(call: TransferCall, blocks: Sequence[BlockBytes], codec: TierCodec | None, tier: Tier) -> list[CopyEnd]:
    if call.given_up:
        return [CopyEnd(Outcome.LATE)] * len(blocks)
    return store_blocks(blocks, codec, tier)


def _outcome(plan: PlannedTransfer, loaded: Loaded) -> Outcome:
    """Return the outcome of a load. It is MISSING for a block that another node replaced in a shared tier."""
    block = loaded.block
    if loaded.outcome is not Outcome.OK or block is None:
        return loaded.outcome
    expected = msgspec.structs.replace(plan.stored, writer=block.writer, checksum=block.checksum)
    return Outcome.OK if block == expected else Outcome.MISSING


def _as_loaded(plan: PlannedTransfer, loaded: Loaded) -> StoredBlock:
    """Return the block to store, with the checksum of the loaded bytes: a lossy codec of the source changes them."""
    assert loaded.block is not None
    return msgspec.structs.replace(plan.stored, checksum=loaded.block.checksum)
