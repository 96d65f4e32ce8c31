"""Managers learn from the database what others changed of nodes, without undoing what they changed themselves, and
record pushes, of which the newest are kept."""

import time
from collections.abc import Callable, Sequence

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.ingest.fleet import Fleet, FleetNode
from app.push.node_journal import NodeJournal, stored_node
from app.store.base.database import Database
from app.store.base.notify import Notification
from app.store.fleet import nodes, pushes
from app.store.fleet.nodes import NodeRow
from app.store.fleet.pushes import PushRow
from dataplane.protocol.observed import Observed

pytestmark = pytest.mark.anyio
Change = Callable[[Fleet], None]


def row(name: str) -> NodeRow:
    return NodeRow(
        name=name, control_url=f"tcp://{name}:1", events_url=f"tcp://{name}:2", epoch="", pid=0, release="",
        engine_socket="", capacity_bytes=0, labels={"zone": "a"}, public_key=name * 40, joined_by="t", draining=False,
        first_seen_at=1.0, seen_at=1.0,
    )  # fmt: skip


def forget(fleet: Fleet) -> None:
    del fleet.nodes["a"]


def drain(fleet: Fleet) -> None:
    fleet.nodes["a"].draining = True


def label(fleet: Fleet) -> None:
    fleet.nodes["a"].own_labels = {}


def admit(fleet: Fleet) -> None:
    fleet.nodes["c"] = stored_node(row("c"), time.monotonic())


@pytest.mark.parametrize("change", [forget, drain, label, admit])
async def test_what_a_manager_changes_while_it_reads_is_not_undone(
    database: Database, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    fleet, journal = Fleet(), NodeJournal(database, 100)
    async with database.write() as session:
        session.add_all([row("a"), row("b")])
    await journal.catch_up(fleet, time.monotonic())
    assert fleet.nodes.keys() == {"a", "b"}

    async def outdated(session: AsyncSession) -> Sequence[NodeRow]:
        rows = await all_nodes(session)
        change(fleet)
        return rows

    all_nodes = nodes.all_nodes
    monkeypatch.setattr(nodes, "all_nodes", outdated)
    await journal.catch_up(fleet, time.monotonic())
    expected = Fleet()
    expected.nodes |= {name: stored_node(row(name), 0.0) for name in "ab"}
    change(expected)
    assert states(fleet) == states(expected)
    monkeypatch.undo()
    await journal.catch_up(fleet, time.monotonic())
    assert states(fleet) == {name: ({"zone": "a"}, False) for name in "ab"}, "the next time it follows the database"


async def test_a_late_answer_of_a_node_does_not_replace_another_that_joined_under_its_name(database: Database) -> None:
    journal, earlier, joined = NodeJournal(database, 100), row("a"), row("a")
    earlier.public_key, joined.public_key = "j" * 40, "k" * 40
    async with database.write() as session:
        session.add(joined)
    journal.record_join(answered(earlier, generation=7))
    await journal.flush()
    assert await recorded(database) == ("k" * 40, [])
    journal.record_join(answered(earlier, generation=7))
    journal.record_join(answered(joined, generation=9))
    await journal.flush()
    assert await recorded(database) == ("k" * 40, [9]), "the answers of both nodes are written together"


def answered(stored: NodeRow, generation: int) -> FleetNode:
    node = stored_node(stored, time.monotonic())
    node.observed["quotas"] = Observed(generation, "digest", "store")
    return node


async def recorded(database: Database) -> tuple[str, list[int]]:
    """Return the key of the node, and the generations of its observations."""
    async with database.read() as session:
        (node,) = await nodes.all_nodes(session)
        return node.public_key, [seen.generation for seen in await nodes.all_observations(session) if seen.store]


def states(fleet: Fleet) -> dict[str, tuple[dict[str, str], bool]]:
    return {name: (node.own_labels, node.draining) for name, node in fleet.nodes.items()}


async def test_no_more_pushes_are_kept_than_the_setting_says(database: Database) -> None:
    journal, node = NodeJournal(database, 100), FleetNode("a", "tcp://a:1")
    async with database.write() as session:  # from before the setting was lowered
        session.add_all(push(generation) for generation in range(300))
    for generation in range(300, 505):
        journal.record_push(node, "quotas", push(generation), Notification("push.acked", 0.0, {}))
        if generation % 50 == 0:
            await journal.flush()
            assert await kept(database) == list(range(generation, generation - 100, -1))
    await journal.flush()
    assert await kept(database) == list(range(504, 404, -1))


def push(generation: int) -> PushRow:
    return PushRow(
        type="quotas", node="a", generation=generation, digest="", state="acked", reason="change", attempt=1,
        size_bytes=1, bodies=0, sent_at=float(generation), answered_at=None, applied_s=None, faults=[],
    )  # fmt: skip


async def kept(database: Database) -> list[int]:
    """Return the generations of all stored pushes, the newest first."""
    async with database.read() as session:
        rows, total = await pushes.newest(session, kind=None, node=None, state=None, limit=1000)
    assert len(rows) == total
    return [row.generation for row in rows]
