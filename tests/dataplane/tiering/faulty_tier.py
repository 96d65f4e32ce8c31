"""A tier in a dictionary that does what a test tells it: fail, hang, lie about a result, raise what it must not."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from math import inf

from dataplane.protocol.checksums import checksum
from dataplane.protocol.stored_blocks import BlockName, Loaded, Outcome, StoredBlock
from dataplane.tiers.tier import BlockLoad, BlockStore, TierError, TierHealth, TierUsage


class FaultyTier:
    """A `Tier`. `fault` is what the next calls do: nothing special, `error`, `crash`, `failed`, `full`, `hang`."""

    def __init__(self) -> None:
        self.stored: dict[BlockName, tuple[StoredBlock, bytes]] = {}
        self.fault = ""
        self.go_on = threading.Event()
        self.hanging = 0
        self.closed = False

    def _begin(self) -> Outcome | None:
        if self.fault == "error":
            raise TierError("the tier is gone")
        if self.fault == "crash":
            raise ZeroDivisionError("a defect")
        if self.fault == "hang":
            self.hanging += 1
            self.go_on.wait(60)
            self.hanging -= 1
        return {"failed": Outcome.FAILED, "full": Outcome.FULL}.get(self.fault)

    def stored_size(self, length: int) -> int:
        return 4096 + length

    def lookup(self, names: Sequence[BlockName], deadline: float) -> list[StoredBlock | None]:
        return [self.stored[name][0] if name in self.stored else None for name in names]

    def store(self, stores: Sequence[BlockStore], deadline: float) -> list[Outcome]:
        outcome = self._begin()
        if outcome is not None:
            return [outcome] * len(stores)
        for store in stores:
            self.stored[store.block.name] = (store.block, bytes(store.data))
        return [Outcome.OK] * len(stores)

    def load(self, loads: Sequence[BlockLoad], deadline: float) -> list[Loaded]:
        outcome = self._begin()
        return [Loaded(outcome) if outcome is not None else self._load(load) for load in loads]

    def _load(self, load: BlockLoad) -> Loaded:
        if load.name not in self.stored:
            return Loaded(Outcome.MISSING)
        block, data = self.stored[load.name]
        if checksum(data) != block.checksum:
            del self.stored[load.name]
            return Loaded(Outcome.CORRUPT)
        load.into[:] = data
        return Loaded(Outcome.OK, block)

    def delete(self, names: Sequence[BlockName], deadline: float) -> list[Outcome]:
        outcome = self._begin()
        if outcome is not None:
            return [outcome] * len(names)
        for name in names:
            self.stored.pop(name, None)
        return [Outcome.OK] * len(names)

    def sync(self, deadline: float) -> Outcome:
        return Outcome.OK

    def blocks(self, deadline: float = inf) -> Iterator[StoredBlock]:
        return iter([block for block, _ in list(self.stored.values())])

    def resize(self, budget_bytes: int) -> bool:
        return True

    def usage(self) -> TierUsage:
        return TierUsage(len(self.stored), sum(4096 + len(data) for _, data in self.stored.values()), 0)

    def health(self, deadline: float) -> TierHealth:
        return TierHealth(not self.fault, self.fault)

    def close(self) -> None:
        self.closed = True
