"""Interfaces that the gateway needs from the cache: the core's node, and the named segment that its clients map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from dataplane.core.engines.engines import Engine
from dataplane.core.engines.storing import GrantResult
from dataplane.core.inprocess import LeasedChain
from dataplane.protocol.engine import Abort, Attach, Commit, Reserve


class GatewayCache(Protocol):
    """The core, for engines in this process. `dataplane.core.inprocess.InProcess` implements it."""

    @property
    def engines(self) -> Mapping[int, Engine]: ...

    def attach(
        self, message: Attach, pid: int, now: float, started: int = 0, gateway: str = ""
    ) -> tuple[Engine, list[int]]:
        """Attach an engine, and return it with the numbers of its spaces. Raise ProtocolError on failure.

        `message.spaces` may be empty, because a scheduler's engine may hold blocks of every space of its gateway.
        """

    def hold(
        self,
        client: int,
        space: int,
        keys: bytes,
        tenant: str,
        now: float,
        *,
        asked: bool,
        used: bool = True,
        most: int | None = None,
    ) -> LeasedChain:
        """Lease the leading READY blocks of a chain, at most `most`, in the engine's own area.

        `asked` counts the call as a look-up of the tenant; `used` credits the use of the blocks at once. Raise
        ProtocolError on failure.
        """

    def release(self, client: int, descriptors: Sequence[int]) -> None:
        """Lower counters that `hold` raised. Do nothing if the engine is gone, because it has no counters."""

    def held(self, client: int) -> list[int]:
        """Return the descriptors that an engine's area leases, each as often as it is leased.

        After a restart, these are the leases that the previous data plane held for the engine.
        """

    def reserve(self, client: int, message: Reserve, now: float) -> GrantResult: ...

    def next_ranges(self, space: int, keys: bytes, nbytes: int) -> list[tuple[int, int]]:
        """Return the ranges (base, bytes) of the named segment that a store would begin to use.

        Raise ProtocolError if the request is invalid.
        """

    def commit(self, client: int, message: Commit, now: float) -> int: ...

    def abort(self, client: int, message: Abort, now: float) -> None: ...

    def detach(self, client: int, reason: str, now: float) -> None:
        """Detach an engine whose connection is gone. Blocks that it was writing are quarantined until its process is
        proven gone."""

    def say_detached(self, client: int, now: float) -> None:
        """Detach an engine that no longer accesses any block: abort its writes and release its leases."""

    def process_gone(self, client: int, now: float) -> None: ...

    def looked_up(self, tenant: str, space: int, requested: int, hits: int, now: float) -> None:
        """Count a look-up of a tenant, in blocks."""

    def use(self, client: int, descriptors: Sequence[int], now: float) -> None:
        """Credit the use of blocks of a chain that the engine holds. Raise ProtocolError on failure."""

    @property
    def unsettled(self) -> int:
        """Return the number of blocks used since the last `settle`."""

    def settle(self, now: float) -> None:
        """Process recorded uses. Frequent calls do the work in small pieces that the core's tick would do at once."""

    def lost(self, gateway: str) -> list[Engine]:
        """Return the engines of a gateway that have no peer: detached, or attached before a restart and not resumed."""

    def clear_gateway(self, gateway: str, now: float, *, force: bool) -> int:
        """Invalidate every block in a gateway's spaces, and return the sweep's number. Without `force`, blocks that are
        leased now stay."""


class NamedPool(Protocol):
    """The named segment."""

    @property
    def name(self) -> str:
        """Return the name that clients receive: `lmcache_l1_pool_...`, without a slash."""

    @property
    def nbytes(self) -> int: ...

    @property
    def identity(self) -> int:
        """Return a number that differs for every file, because clients from before a cold start still map the old
        file."""

    @property
    def problem(self) -> str:
        """Return why new clients cannot open the memory by its name; empty if they can."""

    @property
    def restored(self) -> int:
        """Return how often the name was restored."""

    @property
    def short(self) -> bool:
        """Return whether the machine lacked memory for the last range that was needed."""

    def look(self) -> None:
        """Check the name, restore it if it was removed, and update `problem`."""

    def base(self, segment: int) -> int:
        """Return the byte offset of a gateway space's segment in the named segment. Raise KeyError if there is none."""

    def lacking(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the ranges (base, bytes) that lack some of their pages."""

    def take(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Allocate the pages of ranges. This blocks; do not call it on the loop. Raise OSError on failure."""

    def expect(self) -> None:
        """Prepare for a registering worker, which will store and may address pages directly."""

    def view(self) -> memoryview:
        """Return a writable view of the whole segment."""
