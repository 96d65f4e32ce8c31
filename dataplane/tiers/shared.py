"""What tiers of a store that several nodes write to have in common: the account of the blocks of this node."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from dataplane.protocol.stored_blocks import BlockName, Outcome, writer_number
from dataplane.tiers.registry import TierContext
from dataplane.tiers.tier import BlockStore, TierUsage
from dataplane.tiers.values import parse_value_name, value_prefix, value_size
from dataplane.tiers.written import Written


class SharedTier(ABC):
    """Base of such tiers. See `Tier` for the methods."""

    def __init__(self, context: TierContext, ttl_s: float = 0) -> None:
        """Without use, blocks expire after `ttl_s`; 0 means that they do not."""
        self._cluster = context.cluster
        self._writer = writer_number(context.node)
        self._written = Written(context.budget_bytes, ttl_s)

    def _named(self, text: str) -> BlockName | None:
        """Return the block of a listed name. Count a name that is not of a block."""
        name = parse_value_name(self._cluster, text)
        if name is None:
            self._written.foreign(text.removeprefix(value_prefix(self._cluster)))
        return name

    def stored_size(self, length: int) -> int:
        return value_size(length)

    def store(self, stores: Sequence[BlockStore], deadline: float) -> list[Outcome]:
        try:
            with self._written.writing([store.block.name for store in stores], deadline):
                return self._store(stores, deadline)
        except TimeoutError:
            return [Outcome.LATE] * len(stores)

    @abstractmethod
    def _store(self, stores: Sequence[BlockStore], deadline: float) -> list[Outcome]:
        """Store blocks that no other thread stores or deletes meanwhile."""

    def delete(self, names: Sequence[BlockName], deadline: float) -> list[Outcome]:
        try:
            with self._written.writing(names, deadline):
                outcomes = self._delete(names, deadline)
                for name, outcome in zip(names, outcomes, strict=True):
                    if outcome is Outcome.OK:
                        self._written.remove(name)
                return outcomes
        except TimeoutError:
            return [Outcome.LATE] * len(names)

    @abstractmethod
    def _delete(self, names: Sequence[BlockName], deadline: float) -> list[Outcome]:
        """Delete blocks that no other thread stores or deletes meanwhile."""

    def sync(self, deadline: float) -> Outcome:
        return Outcome.OK

    def _count_loads(
        self, names: Sequence[BlockName], outcomes: Sequence[Outcome], commits: int, deadline: float
    ) -> None:
        """Update the account after loads, and delete corrupt blocks. `commits` is `Written.commits` before the
        loads."""
        corrupt = []
        for name, outcome in zip(names, outcomes, strict=True):
            if outcome is Outcome.OK:
                self._written.touch(name)
            elif outcome is Outcome.MISSING:
                self._written.missing(name, commits)
            elif outcome is Outcome.CORRUPT:
                self._written.corrupt()
                corrupt.append(name)
        if corrupt:
            self.delete(corrupt, deadline)

    def resize(self, budget_bytes: int) -> bool:
        self._written.resize(budget_bytes)
        return True

    def usage(self) -> TierUsage:
        return self._written.usage()
