"""Two management planes on one Postgres, their nodes on machines of their own, and all of it started in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import zmq

from dataplane.protocol.join import Joined, JoinToken, parse_token, token_text
from tests.e2e.larder import until
from tests.fleet.conftest import make_fleet, throw_away
from tests.fleet.fleet import APPLIED_WITHIN, PAGE, START_S, WAIT_S, Fleet, Manager
from tests.fleet.test_machines import stored
from tests.fleet.unknown import UnknownNode
from tests.postgres_cluster import PostgresCluster, find_binaries
from tests.require import require

pytestmark = [pytest.mark.postgres]
ORDERS = 5
ASKING = 20
USES = 3


@dataclass
class Shared:
    """Both see the same nodes: `a`, which joined through the follower, and `b`."""

    fleet: Fleet
    postgres: PostgresCluster
    first: Manager
    second: Manager

    def restore(self) -> None:
        for manager in self.fleet.managers:
            if not manager.alive:
                manager.start()
        for node in self.fleet.nodes.values():
            if not node.alive:
                node.start()
        for manager in self.fleet.managers:  # each knows at once whom it let in
            for name in manager.nodes():
                if name not in self.fleet.nodes:  # the other one may forget it first
                    answer = manager.api.delete(f"/api/v1/nodes/{name}", params={"force": "true"})
                    assert answer.status_code in (204, 404), answer.text
        for manager in self.fleet.managers:
            manager.until_states(a="in_sync", b="in_sync")


def pushes(manager: Manager) -> bool:
    return any(each["answering"] and each["pushing"] for each in manager.get("managers")["items"])


@pytest.fixture(scope="module")
def shared_managers() -> Iterator[Shared]:
    binaries = find_binaries()
    require(binaries, "no PostgreSQL server binaries (Debian: apt install postgresql)")
    assert binaries is not None
    fleet, postgres = make_fleet(), PostgresCluster(binaries)
    try:
        postgres.start()
        key_file = fleet.folder / "manager.key"
        key_file.write_bytes(zmq.curve_keypair()[1])
        key_file.chmod(0o600)
        environ = {"LARDER_DATABASE_URL": postgres.url("postgres"), "LARDER_APP__CURVE_KEY_FILE": str(key_file)}
        first = fleet.manager(**environ).start()
        second = fleet.manager(**environ).start()
        until(lambda: pushes(first) and not pushes(second), "the one that was there before pushes", WAIT_S)
        through_second = fleet.node("a", by=second)
        token = parse_token(through_second.token_file.read_text())
        del token.addresses[0]
        through_second.token_file.write_text(token_text(token))
        fleet.node("b", by=first)
        for node in fleet.nodes.values():
            node.start()
        for manager in fleet.managers:
            manager.until_states(a="in_sync", b="in_sync")
        yield Shared(fleet, postgres, first, second)
    finally:
        throw_away(fleet)
        postgres.stop()


@pytest.fixture
def managers(shared_managers: Shared) -> Iterator[Shared]:
    yield shared_managers
    shared_managers.restore()


def test_a_node_that_joined_through_a_dead_manager_is_announced_by_the_other(managers: Shared) -> None:
    first, second, node = managers.first, managers.second, managers.fleet.nodes["a"]
    until(lambda: pushes(first), "the one that let the node in follows", WAIT_S)
    second.kill()
    first.put_quota("acme", 3 * PAGE, wait=APPLIED_WITHIN)
    first.until_applied("acme", ["a", "b"])
    assert stored(node, "acme", 5) == 3
    node.kill()
    node.token_file.unlink()
    first.put_quota("acme", 2 * PAGE)
    node.start()
    first.until_states(a="in_sync", b="in_sync")
    first.until_applied("acme", ["a", "b"])
    assert stored(node, "acme", 5) == 2


def test_a_follower_that_takes_over_pushes_to_nodes_that_joined_elsewhere(managers: Shared) -> None:
    leader = until(lambda: next((each for each in managers.fleet.managers if pushes(each)), None), "one pushes", WAIT_S)
    other = next(each for each in managers.fleet.managers if each is not leader)
    leader.kill()
    until(lambda: pushes(other), "the other one pushes", WAIT_S)
    other.put_quota("later", 4 * PAGE, wait=APPLIED_WITHIN)
    other.until_applied("later", ["a", "b"])
    assert [stored(node, "later", 6) for node in managers.fleet.nodes.values()] == [4, 4]


# ---- tokens


def ask_at_once(managers: Shared, unknowns: list[UnknownNode], token: JoinToken) -> list[str]:
    """The answer to each; every other one asks the other manager."""
    for number, each in enumerate(unknowns):
        each.ask(token, managers.fleet.managers[number % 2].join_port)
    replies = [each.answer() for each in unknowns]
    return ["joined" if isinstance(each, Joined) else each.code for each in replies]


def create_token(managers: Shared, **fields: Any) -> JoinToken:
    return parse_token(managers.fleet.token(managers.fleet.nodes["a"].machine, **fields))


def test_a_token_admits_its_number_of_nodes_under_concurrent_joins(managers: Shared) -> None:
    token = create_token(managers, uses=USES)
    with ExitStack() as stack:
        unknowns = [stack.enter_context(UnknownNode(f"foreign-{n}")) for n in range(ASKING)]
        replies = ask_at_once(managers, unknowns, token)
    assert sorted(replies) == ["joined"] * USES + ["token_used_up"] * (ASKING - USES)
    known = next(each for each in managers.second.get("join-tokens")["items"] if each["id"] == token.id)
    assert (known["uses_left"], len(known["nodes"])) == (0, USES)


def test_a_name_is_one_nodes_and_a_node_that_asks_twice_is_one_node(managers: Shared) -> None:
    token = create_token(managers, uses=None)
    with ExitStack() as stack:
        namesakes = [stack.enter_context(UnknownNode("namesake")) for _ in range(8)]
        assert sorted(ask_at_once(managers, namesakes, token)) == ["joined"] + ["name_taken"] * 7
        same = [stack.enter_context(UnknownNode("same"))]
        same += [stack.enter_context(UnknownNode("same", same[0].pair)) for _ in range(5)]
        assert ask_at_once(managers, same, token) == ["joined"] * 6
    for manager in managers.fleet.managers:
        assert "join.failed" not in manager.log()
        assert "Traceback" not in manager.log()


@pytest.mark.parametrize("why", ["expired", "revoked"])
def test_a_token_that_ended_at_one_manager_is_refused_by_the_other_at_once(managers: Shared, why: str) -> None:
    token = create_token(managers, ttl_s=0.001 if why == "expired" else 3600)
    if why == "revoked":
        managers.first.ask("DELETE", f"join-tokens/{token.id}")
    with ExitStack() as stack:
        unknowns = [stack.enter_context(UnknownNode(f"late-{n}")) for n in range(2)]
        replies = ask_at_once(managers, unknowns, token)
    assert replies == [{"expired": "token_expired", "revoked": "bad_token"}[why]] * 2
    assert set(managers.second.nodes()) == {"a", "b"}


# ---- everything is started again


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, ORDERS))])
def test_everything_comes_back_in_any_start_order(managers: Shared, seed: int) -> None:
    fleet, first = managers.fleet, managers.first
    first.put_quota("kept", (seed + 1) * PAGE, wait=APPLIED_WITHIN)
    for process in (*fleet.nodes.values(), *fleet.managers):
        process.kill()
    managers.postgres.crash()
    starts = {
        "database": managers.postgres.run,
        **{f"manager {n}": manager.launch for n, manager in enumerate(fleet.managers)},
        **{f"node {name}": node.start for name, node in fleet.nodes.items()},
    }
    order = list(starts)
    random.Random(seed).shuffle(order)
    print("started:", ", ".join(order))
    for name in order:
        starts[name]()
    for manager in fleet.managers:
        until(lambda: manager.answers() or not manager.alive, "it answers or ends", START_S)  # noqa: B023 - at once
        if not manager.alive:
            assert manager.ended() == 1, "without its database it ends with a sentence"
            assert manager.log().splitlines()[-1].startswith("Error: the database ")
            manager.start()
    for manager in fleet.managers:
        manager.until_states(a="in_sync", b="in_sync")
        manager.until_applied("kept", ["a", "b"])
    first.put_quota("fresh", PAGE, wait=APPLIED_WITHIN)
    first.until_applied("fresh", ["a", "b"])
    assert [stored(node, "kept", 9) for node in fleet.nodes.values()] == [seed + 1] * 2
