"""What the gateway needs of the cache: the core's node, and the named segment that its clients map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from dataplane.core.engines import Engine
from dataplane.core.inprocess import Held
from dataplane.core.storing import Granted
from dataplane.protocol.engine import Abort, Attach, Commit, Reserve


class Cache(Protocol):
    """The core, for engines that live in this process. `dataplane.core.inprocess.InProcess` is one."""

    @property
    def engines(self) -> Mapping[int, Engine]: ...

    def attach(
        self, message: Attach, pid: int, now: float, started: int = 0, gateway: str = ""
    ) -> tuple[Engine, list[int]]:
        """Take an engine in; answers its spaces' numbers. `message.spaces` may be empty: a scheduler's engine may hold
        blocks of every space of its gateway. Raises ProtocolError."""

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
    ) -> Held:
        """Lease the leading READY blocks of a chain, `most` at most, in the engine's own area. `asked`: count it as a
        look-up of the tenant. `used`: credit their use at once. Raises ProtocolError."""

    def let_go(self, client: int, descriptors: Sequence[int]) -> None:
        """Lower counters that `hold` raised. An engine that is gone by now has none: nothing happens."""

    def held(self, client: int) -> list[int]:
        """Descriptors whose counters are up in an engine's area, each as often as it is: what a data plane before this
        one held in its name."""

    def reserve(self, client: int, message: Reserve, now: float) -> Granted: ...

    def commit(self, client: int, message: Commit, now: float) -> int: ...

    def abort(self, client: int, message: Abort, now: float) -> None: ...

    def detach(self, client: int, reason: str, now: float) -> None:
        """The engine's connection is gone: what it was writing is quarantined until its process is proven gone."""

    def goodbye(self, client: int, now: float) -> None:
        """The engine says that it touches nothing any more: what it was writing is aborted, what it held let go."""

    def process_gone(self, client: int, now: float) -> None: ...

    def looked_up(self, tenant: str, space: int, requested: int, hits: int, now: float) -> None:
        """Count a look-up of a tenant, in blocks."""

    def use(self, client: int, descriptors: Sequence[int], now: float) -> None:
        """Blocks of a chain that the engine holds were of use. Raises ProtocolError."""

    @property
    def unsettled(self) -> int:
        """Blocks that were used since the last `settle`."""

    def settle(self, now: float) -> None:
        """Take note of what was used: often and of little, where the core's tick has it all at once."""

    def lost(self, gateway: str) -> list[Engine]:
        """Engines of a gateway without a peer: detached, or attached before a restart and not resumed since."""

    def clear_gateway(self, gateway: str, now: float, *, force: bool) -> int:
        """Make every block of a gateway's spaces unreadable; the sweep's number. Without `force` what is leased now
        stays."""


class Pool(Protocol):
    """The named segment."""

    @property
    def name(self) -> str:
        """As announced to clients: `lmcache_l1_pool_...`, without a slash."""

    @property
    def nbytes(self) -> int: ...

    @property
    def identity(self) -> int:
        """Another one for every file: whoever mapped one before a cold start maps it still."""

    def base(self, segment: int) -> int:
        """Bytes from the start of the named segment to a segment of a gateway space. Raises KeyError."""

    def view(self) -> memoryview:
        """All of it, writable."""
