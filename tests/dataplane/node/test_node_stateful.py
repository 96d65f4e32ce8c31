"""Any sequence of what engines, operators and time can do leaves the node's accounts consistent."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dataplane.protocol.codes import Code, ProtocolError
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine
from tests.sizes import size

SPACES = (make.space(dtype="bf16"), make.space(dtype="fp8"), make.space("other"))
SIZES = (4096, 5000, 65_536, 300_000, 700_000, 3 * make.MIB)
TENANTS = ("", "a", "b")
CHAINS = [make.keys(length, number) for number, length in enumerate((1, 2, 3, 5, 8, 13, 4, 4))]
CAPACITY = 6 * make.MIB


class NodeMachine(RuleBasedStateMachine):
    """Engines in two groups against one small pool."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(CAPACITY, max_blocks=128, pin_budget_bytes=make.MIB, ttl_s=10)
        self.alive: list[BenchEngine] = []
        self.closed: list[BenchEngine] = []
        self.open: list[tuple[BenchEngine, int]] = []
        self.generation = 0
        self.held: list[tuple[BenchEngine, int, list[bytes]]] = []

    def engine(self, pick: int) -> BenchEngine:
        return self.alive[pick % len(self.alive)]

    @rule(group=st.sampled_from(["one", "two"]))
    def attach(self, group: str) -> None:
        if len(self.alive) < 5:
            self.alive.append(self.bench.attach(*SPACES, group=group, pid=len(self.alive)))

    @precondition(lambda self: self.alive)
    @rule(
        pick=st.integers(0, 9),
        chain=st.sampled_from(CHAINS),
        size=st.sampled_from(SIZES),
        tenant=st.sampled_from(TENANTS),
        space=st.integers(0, 2),
        finish=st.sampled_from(["commit", "some", "abort", "leave"]),
    )
    def write(self, pick: int, chain: list[bytes], size: int, tenant: str, space: int, finish: str) -> None:
        engine = self.engine(pick)
        granted = engine.reserve(chain, size, tenant=tenant, space=space)
        if not granted.reservation:
            return
        if finish == "commit":
            engine.commit(granted.reservation)
        elif finish == "some":
            positions = [at for at, outcome in enumerate(granted.outcomes.tolist()) if outcome == 0]
            engine.commit(granted.reservation, positions[::2])
        elif finish == "abort":
            engine.abort(granted.reservation)
        else:
            self.open.append((engine, granted.reservation))

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(0, 99), commits=st.booleans())
    def finish_later(self, pick: int, commits: bool) -> None:
        engine, reservation = self.open.pop(pick % len(self.open))
        if engine not in self.alive:
            return
        try:
            if commits:
                engine.commit(reservation)
            else:
                engine.abort(reservation)
        except ProtocolError as error:
            assert error.code is Code.RESERVATION_EXPIRED  # noqa: PT017 (either outcome is right)

    @precondition(lambda self: self.alive)
    @rule(pick=st.integers(0, 9), chain=st.sampled_from(CHAINS), space=st.integers(0, 2))
    def acquire(self, pick: int, chain: list[bytes], space: int) -> None:
        engine = self.engine(pick)
        hits = engine.acquire(chain, space)
        self.held.append((engine, space, chain[:hits]))

    @precondition(lambda self: self.alive)
    @rule(pick=st.integers(0, 9))
    def release(self, pick: int) -> None:
        engine = self.engine(pick)
        engine.release()
        self.held = [each for each in self.held if each[0] is not engine]

    @precondition(lambda self: self.alive)
    @rule(pick=st.integers(0, 9), how=st.sampled_from(["die", "detach", "say_detached"]))
    def leave(self, pick: int, how: str) -> None:
        engine = self.alive.pop(pick % len(self.alive))
        if how == "detach":
            engine.detach()
            self.closed.append(engine)
            return
        self.held = [each for each in self.held if each[0] is not engine]
        if how == "die":
            engine.die()
        else:
            engine.say_detached()

    @precondition(lambda self: self.closed)
    @rule(pick=st.integers(0, 9))
    def gone(self, pick: int) -> None:
        engine = self.closed.pop(pick % len(self.closed))
        self.held = [each for each in self.held if each[0] is not engine]
        engine.die()

    @rule(seconds=st.sampled_from([0.05, 4, 11]))
    def wait(self, seconds: float) -> None:
        self.bench.pass_time(seconds)

    @rule(limits=st.dictionaries(st.sampled_from(TENANTS), st.one_of(st.none(), st.integers(0, CAPACITY))))
    def quotas(self, limits: dict[str, int | None]) -> None:
        self.generation += 1
        assert self.bench.apply(make.quotas(limits, self.generation)) == []

    @rule(
        chosen=st.dictionaries(
            st.sampled_from(["p", "q", "r"]),
            st.tuples(
                st.sampled_from(CHAINS),
                st.sampled_from(TENANTS),
                st.one_of(st.none(), st.sampled_from([-1.0, 5.0])),
            ),
        )
    )
    def pins(self, chosen: dict[str, tuple[list[bytes], str, float | None]]) -> None:
        self.generation += 1
        records = [
            make.pin(name, chain, tenant=tenant, expires_at=None if after is None else self.bench.now + after)
            for name, (chain, tenant, after) in chosen.items()
        ]
        assert self.bench.apply(*make.pins(records, self.generation)) == []

    @invariant()
    def accounts_are_consistent(self) -> None:
        assert self.bench.faults() == []

    @invariant()
    def what_is_leased_stays(self) -> None:
        for engine, space, chain in self.held:
            assert all(engine.has(chain, space))

    @invariant()
    def pins_count_what_is_there(self) -> None:
        pool = self.bench.node.pool
        ready = [block for block in pool.table.blocks.values() if block.state.name == "READY"]
        for pin in pool.pins.by_name.values():
            mine = [
                block
                for block in ready
                if not pin.expired
                and block.key in pin.keys
                and (pool.spaces.model(block.space), block.tenant.salt) == (pin.model, pin.tenant)
            ]
            assert pin.resident == len(mine)
            assert pin.guaranteed == len(pool.pins.guaranteed.intersection(mine))
            assert pin.bytes == sum(block.charge for block in mine)

    def teardown(self) -> None:
        for engine in self.alive:
            engine.die()
        for engine in self.closed:
            engine.die()
        assert self.bench.node.engines == {}
        assert self.bench.pool.reserved_bytes == 0
        assert self.bench.pool.quarantined_bytes == 0
        assert self.bench.faults() == []
        self.bench.apply(make.quotas({}, self.generation + 1))
        self.bench.apply(*make.pins([], self.generation + 2))
        engine = self.bench.attach(SPACES[2])
        stored = engine.store([make.key("all of it")], CAPACITY)
        assert stored.written == 1, f"the whole pool is usable again: {stored.outcomes}"


TestNode = NodeMachine.TestCase
TestNode.settings = settings(max_examples=size(150, 60), stateful_step_count=50, deadline=None)
