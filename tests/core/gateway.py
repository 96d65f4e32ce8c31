"""A bench whose engines a gateway attaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dataplane.core.engines.storing import GrantResult
from dataplane.core.inprocess import InProcess, LeasedChain
from dataplane.protocol.engine import VERSION, Abort, Attach, Commit, Reserve, SpaceRequest
from dataplane.protocol.layout import H_MEMORY
from dataplane.protocol.spaces import LMCACHE, Space
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench


def space(model: str = make.MODEL, rank: int = 0, block_bytes: int = 0) -> Space:
    return Space(model=model, rank=rank, world_size=2, block_bytes=block_bytes, gateway=LMCACHE)


@dataclass
class Peer:
    """One engine of the gateway."""

    bench: Bench
    client: int
    spaces: list[int]
    resumed: bool = False

    @property
    def core(self) -> InProcess:
        return InProcess(self.bench.node)

    def reserve(self, chain: Sequence[bytes], nbytes: int, *, tenant: str = "", space: int = 0) -> GrantResult:
        message = Reserve(0, self.spaces[space], tenant, make.packed(chain), nbytes)
        return self.core.node.reserve(self.client, message, self.bench.now)

    def commit(self, reservation: int) -> int:
        return self.core.node.commit(self.client, Commit(0, reservation), self.bench.now)

    def abort(self, reservation: int) -> None:
        self.core.node.abort(self.client, Abort(0, reservation), self.bench.now)

    def store(self, chain: Sequence[bytes], nbytes: int, *, tenant: str = "", space: int = 0) -> int:
        """Reserve and commit; returns published blocks."""
        granted = self.reserve(chain, nbytes, tenant=tenant, space=space)
        return self.commit(granted.reservation) if granted.reservation else 0

    def hold(
        self, chain: Sequence[bytes], *, number: int = 0, used: bool = True, most: int | None = None
    ) -> LeasedChain:
        """Hold the leading blocks; with `used`, read them."""
        leased = self.core.hold(self.client, number or self.spaces[0], make.packed(chain), most=most)
        if used and leased.descriptors:
            self.core.use(self.client, leased.descriptors, self.bench.now)
        return leased

    def found(self, chain: Sequence[bytes], number: int = 0) -> int:
        """Leading blocks that are here; holds and uses nothing."""
        leased = self.hold(chain, number=number, used=False)
        self.release(leased)
        return len(leased)

    def release(self, leased: LeasedChain) -> None:
        self.core.release(self.client, leased.descriptors)

    def detach(self) -> None:
        self.core.node.detach(self.client, "connection closed", self.bench.now)

    def die(self) -> None:
        self.core.node.process_gone(self.client, self.bench.now)


def peer(
    bench: Bench, *spaces: Space, pid: int = 0, group: str = "", resume: int = 0, writing: Sequence[int] = ()
) -> Peer:
    message = Attach(
        0,
        VERSION,
        group or f"lmcache:{len(bench.node.engines)}",
        [SpaceRequest(each) for each in spaces],
        resume=resume,
        resume_memory=bench.index.cells[H_MEMORY],
        writing=list(writing),
    )
    engine, numbers = bench.node.attach(message, pid, bench.now, gateway=LMCACHE)
    return Peer(bench, engine.client, numbers, engine.resumed)
