"""Account of the blocks that this node wrote to a shared tier.

Other nodes write to the same store, and its server evicts blocks by itself. Therefore, a tier counts what this node
knows: confirmed stores, and the blocks from before its start that a listing found. Deleted, missing and expired blocks
are subtracted.
"""

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from dataplane.protocol.stored_blocks import BlockName, Outcome, StoredBlock
from dataplane.tiers.tier import TierError, TierUsage
from dataplane.tiers.values import value_size

_MAX_FOREIGN = 10_000
_MAX_SHOWN = 200


class _Entry(NamedTuple):
    size: int
    touched: float
    commit: int
    """Number of the store."""


class Written:
    """Blocks with their sizes, in the order of their last use, and the budget that they are charged to. Thread-safe."""

    def __init__(self, budget_bytes: int, ttl_s: float) -> None:
        """A `budget_bytes` of 0 is no limit; a `ttl_s` of 0 means that blocks do not expire."""
        self._budget_bytes = budget_bytes
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)
        self._writing: set[bytes] = set()
        self._commits = 0
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._stored_bytes = 0
        self._reserved_bytes = 0
        self._corrupt_blocks = 0
        self._foreign: set[str] = set()
        """Names of things below the prefix that no node of Larder wrote, in the listing that runs or ran last."""
        self._first_foreign = ""

    @contextlib.contextmanager
    def writing(self, names: Iterable[BlockName], deadline: float) -> Iterator[None]:
        """Prevent other threads from storing and deleting blocks of these names. Otherwise the count would depend on
        the order of the replies. Raises TimeoutError."""
        identities = {_identity(name) for name in names}
        with self._released:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not self._released.wait_for(lambda: self._writing.isdisjoint(identities), remaining):
                raise TimeoutError("the deadline has passed")
            self._writing |= identities
        try:
            yield
        finally:
            with self._released:
                self._writing -= identities
                self._released.notify_all()

    def reserve(self, name: BlockName, size: int) -> bool:
        """Set bytes aside for a store, unless the budget has no room. `commit` or `cancel` must follow."""
        with self._lock:
            self._expire()
            entry = self._entries.get(_identity(name))
            charged = self._stored_bytes + self._reserved_bytes - (entry.size if entry else 0)
            if self._budget_bytes and charged + size > self._budget_bytes:
                return False
            self._reserved_bytes += size
            return True

    def commit(self, name: BlockName, size: int) -> None:
        """Count a block that was stored."""
        with self._lock:
            self._reserved_bytes -= size
            self._remove(_identity(name))
            self._commits += 1
            self._entries[_identity(name)] = _Entry(size, time.monotonic(), self._commits)
            self._stored_bytes += size

    def count_listed(self, name: BlockName, size: int) -> None:
        """Count a block of this node that a listing found, unless it is already counted."""
        with self._lock:
            if _identity(name) not in self._entries:
                self._commits += 1
                self._entries[_identity(name)] = _Entry(size, time.monotonic(), self._commits)
                self._stored_bytes += size

    def listed(
        self,
        names: Sequence[BlockName],
        read: Callable[[], tuple[Sequence[StoredBlock | None], Sequence[Outcome]]],
        writer: int,
        deadline: float,
    ) -> list[StoredBlock]:
        """Read the headers of one page of a list with `read`. Return their blocks, and count those of `writer`.

        Raises TierError if a header cannot be read: the count would be too low.
        """
        names = list(dict.fromkeys(names))
        try:
            with self.writing(names, deadline):
                blocks, outcomes = read()
                for name, block, outcome in zip(names, blocks, outcomes, strict=True):
                    if block is None and outcome is Outcome.CORRUPT:
                        self.foreign(f"{name.space.hex()}/{name.key.hex()}")
                unread = sum(outcome in (Outcome.LATE, Outcome.FAILED) for outcome in outcomes)
                if unread:
                    raise TierError(f"{unread} of {len(outcomes)} headers of listed blocks cannot be read")
                readable = [block for block in blocks if block is not None]
                for block in readable:
                    if block.writer == writer:
                        self.count_listed(block.name, value_size(block.stored_bytes))
                return readable
        except TimeoutError:
            raise TierError("blocks cannot be listed by the deadline") from None

    def cancel(self, size: int) -> None:
        """Release the bytes that were set aside for a failed store."""
        with self._lock:
            self._reserved_bytes -= size

    def touch(self, name: BlockName) -> None:
        """Restart a block's time to live."""
        if not self._ttl_s:
            return
        with self._lock:
            identity = _identity(name)
            entry = self._entries.get(identity)
            if entry is not None:
                self._entries[identity] = entry._replace(touched=time.monotonic())
                self._entries.move_to_end(identity)

    def commits(self) -> int:
        """Return the number of stores that were counted so far, for `missing`."""
        return self._commits

    def missing(self, name: BlockName, commits: int) -> None:
        """Stop counting a block that the store did not have, unless it was stored after the first `commits` stores."""
        with self._lock:
            identity = _identity(name)
            entry = self._entries.get(identity)
            if entry is not None and entry.commit <= commits:
                self._remove(identity)

    def remove(self, name: BlockName) -> None:
        """Stop counting a block that was deleted."""
        with self._lock:
            self._remove(_identity(name))

    def corrupt(self) -> None:
        """Count a block that was found corrupt."""
        with self._lock:
            self._corrupt_blocks += 1

    def begin_listing(self) -> None:
        """Count foreign things from zero."""
        with self._lock:
            self._foreign.clear()
            self._first_foreign = ""

    def foreign(self, name: str) -> None:
        """Count a thing in the store that is not a block."""
        with self._lock:
            self._first_foreign = self._first_foreign or name[:_MAX_SHOWN]
            if len(self._foreign) < _MAX_FOREIGN:
                self._foreign.add(name[:_MAX_SHOWN])

    def resize(self, budget_bytes: int) -> None:
        """Change the budget. Stored blocks stay."""
        with self._lock:
            self._budget_bytes = budget_bytes

    def usage(self) -> TierUsage:
        """Return the counted blocks and bytes."""
        with self._lock:
            self._expire()
            return TierUsage(
                len(self._entries),
                self._stored_bytes,
                self._budget_bytes,
                corrupt_blocks=self._corrupt_blocks,
                foreign_objects=len(self._foreign),
                first_foreign=self._first_foreign,
            )

    def _remove(self, identity: bytes) -> None:
        entry = self._entries.pop(identity, None)
        if entry is not None:
            self._stored_bytes -= entry.size

    def _expire(self) -> None:
        if not self._ttl_s:
            return
        oldest_live = time.monotonic() - self._ttl_s
        while self._entries:
            identity, entry = next(iter(self._entries.items()))
            if entry.touched > oldest_live:
                return
            self._remove(identity)


def _identity(name: BlockName) -> bytes:
    return name.space + name.key
