"""Whatever pins, engines, blocks and the device do: an engine never reads a GPU copy that is not its block's."""

from __future__ import annotations

from typing import Any

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.dataplane import factories as make
from tests.dataplane.bench_device import BenchDevice
from tests.dataplane.bench_node import Bench, BenchEngine
from tests.sizes import size

SPACES = (make.space(dtype="bf16"), make.space(dtype="fp8"))
SIZES = (300_000, 700_000)
CHAINS = [make.keys(length, number) for number, length in enumerate((3, 5, 8))]
TENANTS = ("", "a")
CAPACITY = 16 * make.MIB


class GpuCopyMachine(RuleBasedStateMachine):
    """A pool so small that blocks come and go, and a device on which few of them fit."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(CAPACITY, max_blocks=64, pin_budget_bytes=4 * make.MIB)
        self.alive: list[BenchEngine] = []
        self.generation = 0

    @initialize(extents=st.integers(1, 3))
    def device_is_there(self, extents: int) -> None:
        self.device = BenchDevice(self.bench, extents * 2 * make.MIB)
        self.device.read_by()
        for _ in range(2):
            self.attach(True, None)
        for chain in CHAINS:
            self.alive[0].store(chain, SIZES[0])
        self.pins({"p": {"chain": CHAINS[0], "tier": "gpu"}, "q": {"chain": CHAINS[2], "tier": "gpu"}})
        self.device.run()

    def engine(self, pick: int) -> BenchEngine:
        return self.alive[pick % len(self.alive)]

    @rule(reads=st.booleans(), only=st.sampled_from([None, 0, 1]))
    def attach(self, reads: bool, only: int | None) -> None:
        if len(self.alive) < 4:
            spaces = SPACES if only is None else (SPACES[only],)
            engine = self.bench.attach(*spaces, pid=len(self.alive))
            self.alive.append(engine)
            if reads:
                self.device.read_by(engine)

    @precondition(lambda self: self.alive)
    @rule(
        pick=st.integers(0, 9),
        chain=st.sampled_from(CHAINS),
        size=st.sampled_from(SIZES),
        tenant=st.sampled_from(TENANTS),
        space=st.integers(0, 1),
    )
    def store(self, pick: int, chain: list[bytes], size: int, tenant: str, space: int) -> None:
        engine = self.engine(pick)
        engine.store(chain, size, tenant=tenant, space=space % len(engine.spaces))

    @precondition(lambda self: self.alive)
    @rule(pick=st.integers(0, 9), chain=st.sampled_from(CHAINS), space=st.integers(0, 1))
    def load(self, pick: int, chain: list[bytes], space: int) -> None:
        engine = self.engine(pick)
        if engine.client in self.device.open_in:
            found = self.device.load(engine, chain, space % len(engine.spaces))
            event(f"GPU copies read: {any(found)}")

    @precondition(lambda self: self.alive)
    @rule(pick=st.integers(0, 9), closes=st.booleans())
    def release(self, pick: int, closes: bool) -> None:
        engine = self.engine(pick)
        self.device.release(engine)
        if closes and engine.client in self.device.open_in:
            self.device.close_gone(engine)

    @precondition(lambda self: self.alive)
    @rule(pick=st.integers(0, 9), detach_cleanly=st.booleans())
    def leave(self, pick: int, detach_cleanly: bool) -> None:
        engine = self.alive.pop(pick % len(self.alive))
        self.device.end(engine)
        if detach_cleanly:
            engine.detach_cleanly()
        else:
            engine.die()

    @rule(
        chosen=st.dictionaries(
            st.sampled_from(["p", "q", "r"]),
            st.fixed_dictionaries(
                {
                    "chain": st.sampled_from(CHAINS),
                    "tenant": st.sampled_from(TENANTS),
                    "tier": st.sampled_from(["gpu", "gpu", "host"]),
                    "strength": st.sampled_from(["soft", "guaranteed", "permanent"]),
                }
            ),
        )
    )
    def pins(self, chosen: dict[str, dict[str, Any]]) -> None:
        self.generation += 1
        records = [make.pin(name, **fields) for name, fields in chosen.items()]
        assert self.bench.apply(*make.pins(records, self.generation)) == []

    @rule(chain=st.sampled_from(CHAINS))
    def swap(self, chain: list[bytes]) -> None:
        """One pin alone, and everything is done that follows from it."""
        self.pins({"p": {"chain": chain, "tier": "gpu"}})
        self.device.run(times=3)

    @precondition(lambda self: self.alive)
    @rule(pick=st.integers(0, 9))
    def load_all(self, pick: int) -> None:
        for chain in CHAINS:
            self.load(pick, chain, 0)

    @rule(permanent=st.booleans())
    def clear(self, permanent: bool) -> None:
        self.bench.node.clear(self.bench.now, permanent=permanent)

    @rule(seconds=st.sampled_from([0.6, 11.0, 31.0]), takes=st.booleans())
    def wait(self, seconds: float, takes: bool) -> None:
        self.bench.pass_time(seconds)
        if takes:
            self.device.take()

    @precondition(lambda self: self.device.queue)
    @rule(count=st.integers(1, 9), fails=st.sampled_from([False, False, False, True]))
    def work(self, count: int, fails: bool) -> None:
        for _ in range(min(count, len(self.device.queue))):
            self.device.refuses = fails
            self.device.do_one()
        self.device.refuses = False

    @rule()
    def all_is_done(self) -> None:
        self.device.run(times=2)

    @invariant()
    def accounts_are_consistent(self) -> None:
        if hasattr(self, "device"):
            assert [*self.bench.faults(), *self.device.faults()] == []

    def teardown(self) -> None:
        if not hasattr(self, "device"):
            return
        for engine in self.alive:
            self.device.end(engine)
            engine.die()
        self.device.run(31.0)
        assert (self.device.memory, self.device.stats.used_bytes, self.device.shown()) == ({}, 0, {})
        pool = self.bench.node.pool
        assert not pool.leases.leased(pool.table.space_of).get(0)
        reader = self.bench.attach(*SPACES, pid=99)
        self.device.read_by(reader)
        self.bench.node.clear(self.bench.now, permanent=True)
        self.bench.pass_time(0.6)
        chain = CHAINS[1]
        self.bench.apply(*make.pins([make.pin("all", chain, tier="gpu")], self.generation + 1))
        reader.store(chain, SIZES[0])
        self.device.run()
        assert self.device.load(reader, chain) == [True] * len(chain), "the device is usable again"


TestGpuCopies = GpuCopyMachine.TestCase
TestGpuCopies.settings = settings(max_examples=size(100, 15), stateful_step_count=50, deadline=None)
