"""Sessions in memory: which blocks are private, what operators release and retain, and how many sessions a node has."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec import structs

from dataplane.core.eviction import ancestors
from dataplane.core.pool.sessions import MAX_SESSIONS, SessionTable
from dataplane.core.tenants.eviction_queues import Rank
from dataplane.core.tiering import sessions as actions
from dataplane.protocol.codes import Code
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.control.sessions import ActOnSession, ListSessions, SessionActed, SessionAction, SessionState
from dataplane.protocol.sessions import MAX_SESSION_CHARACTERS
from tests.core.tenancy import PAGE, bench_of, fill
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, refused
from tests.work import lines_run

HOUR = 3600.0
SYSTEM = make.keys(4, "system")
HYBRID = (make.space(), structs.replace(make.space(), kv_group=1, tail_blocks=1))
"""Attention and states."""


def chain_of(name: object, blocks: int) -> list[bytes]:
    """A conversation of so many blocks behind the system prompt."""
    return [*SYSTEM, *make.keys(blocks, name)]


def act(bench: Bench, action: SessionAction, session: str, seconds: float = 0.0, tenant: str = "") -> SessionActed:
    return bench.node.act_on_session(ActOnSession("n", action, tenant, session, seconds), bench.now)


def sessions(bench: Bench, tenant: str | None = None, session: str = "", limit: int = 500) -> list[SessionState]:
    """All sessions, read in pages."""
    found: list[SessionState] = []
    after = 0
    while True:
        page = bench.node.list_sessions(ListSessions("n", tenant, session, after, limit), bench.now)
        found += page.sessions
        if not page.next:
            return found
        after = page.next


def names(states: Sequence[SessionState]) -> list[str]:
    return [state.session for state in states]


def test_release_makes_private_blocks_the_first_victims_and_keeps_the_shared_prefix() -> None:
    bench, engine = bench_of(64)
    ours, theirs = chain_of("ours", 12), chain_of("theirs", 12)
    engine.store(ours, PAGE, session="ours")
    engine.store(theirs, PAGE, session="theirs")
    fill(engine, "", 36)  # what is newer than both
    assert act(bench, "release", "ours") == SessionActed("n", True, 12, 12 * PAGE)
    fill(engine, "", 12, "more")
    assert (engine.lookup(ours), engine.lookup(theirs)) == (4, 16)
    assert bench.node.pool.totals.released_session_blocks == 12


def test_the_last_blocks_of_a_released_chain_go_first() -> None:
    bench, engine = bench_of(64)
    chain = chain_of("a", 12)
    engine.store(chain[:8], PAGE, session="a")
    engine.store(chain[8:], PAGE, parent=chain[7], session="a")
    act(bench, "release", "a")
    fill(engine, "", 54)
    assert engine.lookup(chain) == 10


@pytest.mark.parametrize("other", ["", "other"])
def test_a_prefix_behind_which_another_request_stores_is_not_private(other: str) -> None:
    bench, engine = bench_of(64)
    chain = chain_of("a", 8)
    engine.store(chain, PAGE, session="a")
    engine.store(make.keys(2, "branch"), PAGE, parent=chain[5], session=other)
    assert act(bench, "release", "a").blocks == len(chain) - 6


@pytest.mark.parametrize("other", ["", "other"])
@pytest.mark.parametrize("state_first", [False, True])
def test_states_of_a_prefix_behind_which_another_request_stores_are_not_private(other: str, state_first: bool) -> None:
    """The other request has no state of the prefix to store: it has loaded one."""
    bench, engine = bench_of(1024, spaces=HYBRID[::-1] if state_first else HYBRID)
    attention, state = (1, 0) if state_first else (0, 1)
    chain = chain_of("a", 8)
    engine.store(chain, PAGE, space=attention, session="a")
    for at in (3, 5, 8, 11):
        engine.store([chain[at]], PAGE, parent=chain[at - 1], space=state, session="a")
    engine.store(make.keys(2, "branch"), PAGE, parent=chain[5], space=attention, session=other)
    (listed,) = sessions(bench, session="a")
    answer = act(bench, "release", "a")
    assert (answer.blocks, answer.bytes, listed.private_bytes) == (8, 8 * PAGE, 8 * PAGE)
    demoted = [block for block in bench.node.pool.table.blocks.values() if block.rank is Rank.DEMOTED]
    expected = [(attention, key) for key in chain[6:]] + [(state, chain[at]) for at in (8, 11)]
    assert {(engine.spaces.index(block.space), block.key) for block in demoted} == set(expected)


def test_a_prefix_that_two_sessions_write_at_the_same_time_is_not_private() -> None:
    bench, engine = bench_of(64)
    first, second = chain_of("first", 4), chain_of("second", 4)
    begun = [engine.reserve(chain, PAGE, session=name) for name, chain in (("a", first), ("b", second))]
    assert [engine.commit(each.reservation) for each in begun] == [8, 4]
    assert (act(bench, "release", "a").blocks, act(bench, "release", "b").blocks) == (4, 4)


def test_a_block_that_was_stored_without_a_session_stays_shared() -> None:
    bench, engine = bench_of(64)
    chain = chain_of("a", 8)
    engine.store(SYSTEM, PAGE)
    engine.store(chain, PAGE, session="a")
    assert act(bench, "release", "a").blocks == 8


def test_a_branch_within_a_session_is_private() -> None:
    bench, engine = bench_of(64)
    first = chain_of("first", 4)
    engine.store(first, PAGE, session="a")
    engine.store([*first[:6], *make.keys(3, "second")], PAGE, session="a")
    assert act(bench, "release", "a").blocks == len(first) + 3


def test_a_use_after_a_release_ends_it_and_one_before_does_not() -> None:
    bench, engine = bench_of(64)
    before, after = make.keys(8, "before"), make.keys(8, "after")
    for name, chain in (("before", before), ("after", after)):
        engine.store(chain, PAGE, session=name)
    engine.acquire(before)  # the ring reports it later
    engine.release()
    act(bench, "release", "before")
    act(bench, "release", "after")
    engine.acquire(after)
    engine.release()
    bench.pass_time(0.1)
    fill(engine, "", 56)
    assert (engine.lookup(before), engine.lookup(after)) == (0, 8)


def test_a_release_while_a_request_runs_takes_no_leased_block_and_includes_what_is_being_written() -> None:
    bench, engine = bench_of(32)
    chain = make.keys(16)
    engine.store(chain[:8], PAGE, session="a")
    engine.acquire(chain[:8])
    writing = engine.reserve(chain[8:12], PAGE, parent=chain[7], session="a")
    assert act(bench, "release", "a").blocks == 8
    assert engine.commit(writing.reservation) == 4
    (state,) = sessions(bench)
    assert (state.chunks, state.private_bytes) == (12, 12 * PAGE)
    fill(engine, "", 40)
    assert engine.lookup(chain) == 8
    engine.release()


def test_the_descriptor_of_an_evicted_block_carries_no_session_to_the_next_block() -> None:
    bench, engine = bench_of(16)
    engine.store(make.keys(16, "a"), PAGE, session="a")
    fill(engine, "", 16)
    assert act(bench, "release", "a") == SessionActed("n", True)
    assert sessions(bench)[0].private_bytes == 0


def test_retained_blocks_go_after_the_others_until_the_time_ends() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    chain = chain_of("a", 8)
    engine.store(SYSTEM, PAGE)
    engine.store(chain, PAGE, session="a")
    act(bench, "release", "a")
    assert act(bench, "retain", "a", 60) == SessionActed("n", True, 12, 12 * PAGE)
    (state,) = sessions(bench)
    assert (state.released, state.retained_until) == (False, bench.now + 60)
    fill(engine, "", 200)
    assert engine.lookup(chain) == 12, "with the shared prefix, without which they are of no use"
    assert bench.pool.hinted_bytes == 12 * PAGE
    bench.pass_time(62)
    assert (bench.pool.hinted_bytes, sessions(bench)[0].retained_until) == (0, 0)
    fill(engine, "", 200, "more")
    assert engine.lookup(chain) == 0


def test_retained_blocks_count_against_the_share_of_the_tenant() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    assert bench.apply(make.quotas({"small": 16 * PAGE})) == []
    chain = make.keys(12)
    engine.store(chain, PAGE, tenant="small", session="a")
    assert act(bench, "retain", "a", 60, "small") == SessionActed("n", True, 8, 8 * PAGE, refused_blocks=4)
    assert engine.store(make.keys(8, "new"), PAGE, tenant="small").written == 8
    assert engine.lookup(chain) == 8, "the head is retained"


def test_a_release_ends_what_is_retained() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    engine.store(make.keys(8), PAGE, session="a")
    act(bench, "retain", "a", 60)
    act(bench, "release", "a")
    assert (bench.pool.hinted_bytes, sessions(bench)[0].retained_until) == (0, 0)


def test_the_node_shortens_a_retention_or_has_none() -> None:
    bench, engine = bench_of(64, hint_max_s=10.0)
    engine.store(make.keys(8), PAGE, session="a")
    act(bench, "retain", "a", HOUR)
    assert sessions(bench)[0].retained_until == bench.now + 10
    bench, engine = bench_of(64)
    engine.store(make.keys(8), PAGE, session="a")
    with refused(Code.UNSUPPORTED, match="hint_max_s is 0"):
        act(bench, "retain", "a", 60)


def test_a_session_belongs_to_one_tenant() -> None:
    bench, engine = bench_of(64)
    for tenant in ("a", "b"):
        engine.store(make.keys(4, tenant), PAGE, tenant=tenant, session="s")
    assert act(bench, "release", "s", tenant="a").blocks == 4
    released = {state.tenant: state.released for state in sessions(bench)}
    assert released == {"a": True, "b": False}
    assert names(sessions(bench, "b")) == ["s"]
    assert not act(bench, "release", "s", tenant="c").found
    assert sessions(bench, "c") == []


def test_operators_pins_outrank_a_release() -> None:
    bench, engine = bench_of(64)
    chain = make.keys(8)
    engine.store(chain, PAGE, session="a")
    bench.apply(*make.pins([make.pin("keep", chain[:4])]))
    assert act(bench, "release", "a").blocks == 4
    bench.node.invalidate(Scope(tenant=""), bench.now)
    assert act(bench, "release", "a").blocks == 0


def test_sessions_are_listed_with_those_that_go_next_first() -> None:
    bench, engine = bench_of(64)
    for name in ("old", "released", "new", "reused"):
        engine.store(make.keys(2, name), PAGE, session=name)
        bench.pass_time(10)
    act(bench, "release", "released")
    engine.store(make.keys(2, "old"), PAGE, session="old")
    expected = ["released", "new", "reused", "old"]
    assert names(sessions(bench)) == expected
    assert names(sessions(bench, limit=1)) == expected
    assert names(sessions(bench, session="new")) == ["new"]
    old = sessions(bench, session="old")[0]
    assert (old.started_at, old.used_at, old.model) == (1_000_000, 1_000_040, make.space().model)
    assert (old.chunks, old.bytes, old.private_bytes) == (2, {"memory": 2 * PAGE}, 2 * PAGE)


def test_the_chain_of_a_request_that_stores_nothing_is_known() -> None:
    bench, engine = bench_of(64)
    chain = chain_of("a", 8)
    engine.store(chain, PAGE)
    engine.store(chain[:6], PAGE, session="reader")
    (state,) = sessions(bench)
    assert (state.chunks, state.bytes, state.private_bytes) == (6, {"memory": 6 * PAGE}, 0)


def test_a_chain_ends_before_the_blocks_that_were_evicted() -> None:
    bench, engine = bench_of(16)
    chain = make.keys(12)
    engine.store(chain[:6], PAGE, session="a")
    engine.store(chain[6:], PAGE, parent=chain[5], session="a")
    fill(engine, "", 12)
    left = engine.lookup(chain)
    assert 0 < left < 12
    assert sessions(bench)[0].chunks == left


@pytest.mark.parametrize(
    "name",
    ["x" * (MAX_SESSION_CHARACTERS + 1), "x" * (1 << 20), *("a\x00b", "a\nb", "a b", "a/b", "a:b", ".", "..", "\xe9")],
)
def test_a_wrong_name_is_refused(name: str) -> None:
    bench, engine = bench_of(64)
    with refused(Code.BAD_FIELD, "session"):
        engine.store(make.keys(1), PAGE, session=name)
    with refused(Code.BAD_FIELD, "session"):
        act(bench, "release", name)
    with refused(Code.BAD_FIELD, "session"):
        sessions(bench, session=name)
    assert len(bench.node.pool.sessions) == 0


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_wrong_seconds_are_refused(seconds: float) -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    engine.store(make.keys(1), PAGE, session="a")
    for action in ("retain", "prefetch"):
        with refused(Code.BAD_FIELD, "seconds"):
            act(bench, action, "a", seconds)
    for limit in (0, 501):
        with refused(Code.BAD_FIELD, "limit"):
            bench.node.list_sessions(ListSessions("n", limit=limit), bench.now)


# ---- how many there are


def test_a_late_tenant_gets_its_share_of_a_full_table_and_keeps_it() -> None:
    table = SessionTable(16, 64)
    for at in range(1000):
        table.name(2, f"theirs-{at}", 100 + at)
    mine = [table.name(1, f"mine-{at}", 2000 + at) for at in range(20)]
    for at in range(1000, 2000):
        table.name(2, f"theirs-{at}", 3000 + at)
    assert [table.name(1, f"mine-{at}", 6000) for at in range(20)] == mine
    theirs = [record.name for record in table.page(2, "", 0, 64)]
    assert theirs == [f"theirs-{at}" for at in range(2000 - len(theirs), 2000)], "the newest ones"
    assert (len(table), len(theirs), table.forgotten) == (64, 44, 1956)
    for at in range(100):
        table.name(1, f"more-{at}", 7000 + at)
    assert len(table.page(1, "", 0, 64)) == 32, "and no more than the other tenant"


def test_a_released_session_is_forgotten_first() -> None:
    table = SessionTable(16, 4)
    for at in range(4):
        table.name(1, f"s{at}", at)
    record = table.find(1, "s2")
    assert record is not None
    table.release(record)
    table.name(1, "new", 10)
    assert [each.name for each in table.page(1, "", 0, 4)] == ["s0", "s1", "s3", "new"]


def test_each_of_very_many_tenants_may_begin_a_session() -> None:
    table = SessionTable(16, 64)
    for tenant in range(1, 1001):
        table.name(tenant, "s", tenant)
        assert table.find(tenant, "s") is not None
    assert len(table) == 64


def test_a_forgotten_session_owns_nothing_under_its_name() -> None:
    bench, engine = bench_of(64)
    bench.node.pool.sessions = SessionTable(bench.node.max_blocks, 2)
    engine.store(make.keys(4, "a"), PAGE, session="a")
    bench.pass_time(1)
    for name in ("b", "c"):
        engine.store(make.keys(4, name), PAGE, session=name)
    assert not act(bench, "release", "a").found
    engine.store(make.keys(1, "other"), PAGE, session="a")
    assert act(bench, "release", "a").blocks == 1
    assert bench.pool.forgotten_sessions == 2
    assert bench.pool.sessions == 2


def test_a_million_sessions_are_bounded() -> None:
    table = SessionTable(16)
    for at in range(40_000):
        table.name(1, f"s{at}", at)
    assert len(table) == MAX_SESSIONS


def test_a_session_takes_at_most_200_bytes() -> None:
    """Its part of each column, and its name. The kernel gives memory only to the rows that are written to."""
    table, count = SessionTable(0), 1000
    for at in range(count):
        table.name(1, f"{at:0{MAX_SESSION_CHARACTERS}}", at)
    columns = vars(table).values()
    arrays = sum(column.nbytes for column in columns if isinstance(column, np.ndarray))
    row = (arrays + sum(len(column) for column in columns if isinstance(column, bytearray))) / MAX_SESSIONS
    listed = sum(name.__sizeof__() for name in table._names) + table._names.__sizeof__()
    assert row >= 64, "the columns were found"
    assert row + listed / count <= 200


def test_a_chain_on_a_node_without_a_leading_space_is_known() -> None:
    bench, engine = bench_of(64, spaces=(make.space(world_size=2, rank=1),))
    engine.store(make.keys(6), PAGE, session="a")
    assert sessions(bench)[0].chunks == 6


def test_a_dropped_end_of_a_chain_leaves_what_is_before() -> None:
    bench, engine = bench_of(64, hint_max_s=HOUR)
    chain = make.keys(12)
    engine.store(chain[:8], PAGE, session="a")
    engine.store(chain[8:], PAGE, parent=chain[7], session="a", ttl_s=10)
    bench.pass_time(12)
    assert (engine.lookup(chain), sessions(bench)[0].chunks) == (8, 8)


def test_the_eviction_of_a_long_chain_looks_at_each_block_once() -> None:
    def lines(blocks: int) -> int:
        bench, engine = bench_of(512)
        chain = make.keys(blocks)
        engine.store(chain, PAGE, session="a")
        every = list(bench.node.pool.table.blocks.values())
        return lines_run(lambda: bench.node.pool.sessions.evicted(every, None))

    assert lines(256) < 5 * lines(64)


def test_a_session_that_owns_much_is_retained_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MAX_RETAINED", 4)
    bench, engine = bench_of(64, hint_max_s=HOUR)
    chain = make.keys(8)
    for name in chain:  # no chain: each is a block of its own
        engine.store([name], PAGE, session="a")
    assert act(bench, "retain", "a", 60) == SessionActed("n", True, 4, 4 * PAGE, refused_blocks=4)


def test_states_are_retained_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """None needs the one before it."""
    monkeypatch.setattr(ancestors, "MAX_LOOKED_UP", 4)
    bench, engine = bench_of(1024, hint_max_s=HOUR, spaces=HYBRID)
    chain = make.keys(24)
    engine.store(chain, PAGE, session="a")
    for at in range(1, 24, 2):
        engine.store([chain[at]], PAGE, parent=chain[at - 1], space=1, session="a")
    assert act(bench, "retain", "a", 60) == SessionActed("n", True, 24 + 12, (24 + 12) * PAGE)


def test_blocks_without_their_ancestors_are_retained_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ancestors, "MAX_LOOKED_UP", 4)
    bench, engine = bench_of(64, hint_max_s=HOUR)
    for at in range(8):
        first, second = make.keys(2, at)
        engine.store([second], PAGE, parent=first, session="a")
    assert act(bench, "retain", "a", 60) == SessionActed("n", True, 4, 4 * PAGE, refused_blocks=4)
