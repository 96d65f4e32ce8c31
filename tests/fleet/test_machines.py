"""A fleet over a network: joining, cables that are cut, processes that are killed, restarts in any order."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from dataplane.client import Code, attach
from dataplane.protocol.codec import encode
from dataplane.protocol.control import VERSION, Hello
from dataplane.protocol.join import JoinToken, parse_token, token_text
from tests.dataplane import factories as make
from tests.e2e.larder import until
from tests.fleet.fleet import WAIT_S, DataPlane, Fleet, clean_environ

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PAGE = 4096
NAMES = ("a", "b", "c")
QUIET_MS = 1000


def three(fleet: Fleet, *, picky: str = "") -> list[DataPlane]:
    nodes = [fleet.node(name, f"zone={name}", picky=name == picky) for name in NAMES]
    for node in nodes:
        node.start()
    fleet.until_states(a="in_sync", b="in_sync", c="in_sync")
    return nodes


def stored(node: DataPlane, tenant: str, blocks: int) -> int:
    """How many of so many pages a tenant may store on a node."""
    with (
        attach(node.socket, [make.space()], timeout_s=5) as client,
        client.reserve(make.keys(blocks, tenant), PAGE, tenant=tenant) as reservation,
    ):
        return blocks - sum(reservation.refused.values())


def test_a_node_joins_over_the_network_and_nobody_else_gets_in(fleet: Fleet) -> None:
    node = fleet.node("a", "gpu=h200")
    node.start()
    fleet.until_states(a="in_sync")
    told = fleet.get("nodes/a")
    assert told["control_url"] == f"tcp://{node.machine.far}:8472"
    assert told["labels"] == {"gpu": "h200"}
    fleet.put_quota("acme", 4 * PAGE, wait="5s")
    assert stored(node, "acme", 6) == 4
    assert "gpu=h200" in fleet.cli("nodes", "list")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    public, secret = zmq.curve_keypair()
    try:
        with context.socket(zmq.DEALER) as plain, context.socket(zmq.DEALER) as strange:
            for each in (plain, strange):
                each.linger = 0
            strange.curve_serverkey = told["public_key"].encode()
            strange.curve_publickey, strange.curve_secretkey = public, secret
            for each in (plain, strange):
                each.connect(told["control_url"])
                each.send(encode(Hello(VERSION, "stranger")))
                assert not each.poll(QUIET_MS), "no answer without an admitted key"
    finally:
        context.term()
    until(lambda: "peer.refused" in node.log(), "the node tells of the stranger")
    assert fleet.states() == {"a": "in_sync"}


def test_wrong_tokens_end_the_data_plane_with_a_sentence(fleet: Fleet) -> None:
    node = fleet.node("a")
    good = parse_token(node.token_file.read_text())
    node.token_file.write_text(token_text(JoinToken(good.id, bytes(32), good.key, good.addresses)))
    assert node.start().ended() == 1
    assert "bad_token" in node.log()
    assert "Traceback" not in node.log()
    other_key = zmq.curve_keypair()[0].decode()
    node.token_file.write_text(token_text(JoinToken(good.id, good.secret, other_key, good.addresses)))
    node.start()
    until(lambda: "did not answer" in node.log(), "a management plane with another key is nobody", WAIT_S)
    assert fleet.states() == {}


def test_plain_sockets_on_a_network_are_refused_with_what_to_do(fleet: Fleet, tmp_path: Path) -> None:
    machine = fleet.machine()
    done = subprocess.run(
        machine.command(sys.executable, "-m", "app", "dataplane"),
        env={
            **clean_environ(),
            "LARDER_STATE_DIR": str(tmp_path),
            "LARDER_LMCACHE_PORT": "0",
            "LARDER_CONTROL_URL": "tcp://0.0.0.0:8472",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "larder nodes token create" in done.stderr


def test_a_node_behind_a_cut_cable_serves_on_and_catches_up_when_it_heals(fleet: Fleet) -> None:
    nodes = three(fleet)
    fleet.put_quota("acme", 8 * PAGE, wait="5s")
    nodes[1].machine.cut()
    fleet.until_states(a="in_sync", b="lost", c="in_sync")
    for pages in (4, 3, 2):
        fleet.put_quota("acme", pages * PAGE, wait="2s")
    fleet.put_quota("late", PAGE, wait="2s")
    assert fleet.applied("acme") == {"a": True, "b": False, "c": True}
    lost = fleet.get("quotas/acme")["status"]["nodes"]["b"]["conditions"]
    assert [condition["reason"] for condition in lost] == ["NodeLost", "NodeLost"]
    assert stored(nodes[1], "acme", 12) == 8, "what was in force stays in force"
    nodes[1].machine.heal()
    fleet.until_states(a="in_sync", b="in_sync", c="in_sync")
    fleet.until_applied("acme", NAMES)
    assert [stored(node, "late", 3) for node in nodes] == [1, 1, 1]


def test_what_was_committed_before_the_management_plane_was_killed_is_pushed_by_the_next(
    fleet: Fleet,
) -> None:
    nodes = three(fleet)
    for node in nodes:
        node.machine.cut()
    fleet.put_quota("acme", 2 * PAGE)
    fleet.kill()
    for node in nodes:
        node.machine.heal()
    fleet.start()
    fleet.until_states(a="in_sync", b="in_sync", c="in_sync")
    fleet.until_applied("acme", NAMES)
    assert [stored(node, "acme", 5) for node in nodes] == [2, 2, 2]


def test_everything_comes_back_whatever_is_started_first(fleet: Fleet) -> None:
    nodes = three(fleet)
    fleet.put_quota("acme", 2 * PAGE, wait="5s")
    for node in nodes:
        node.token_file.unlink()
    everything: list[Fleet | DataPlane] = [fleet, *nodes]
    orders = [list(order) for order in itertools.permutations(everything)]
    for order in (everything, everything[::-1], random.Random(7).choice(orders)):
        fleet.kill()
        for node in nodes:
            node.kill()
        for each in order:
            each.start()
        fleet.until_states(a="in_sync", b="in_sync", c="in_sync")
        fleet.until_applied("acme", NAMES)
    assert [stored(node, "acme", 5) for node in nodes] == [2, 2, 2]


def test_a_node_that_refuses_is_shown_alone(fleet: Fleet) -> None:
    three(fleet, picky="b")
    fleet.put_quota("acme", 2 * PAGE, wait="5s")
    fleet.put_quota("too-odd", PAGE, wait="5s")
    fleet.until_states(a="in_sync", b="nacked", c="in_sync")
    assert fleet.applied("too-odd") == {"a": True, "b": False, "c": True}
    status = fleet.get("quotas/too-odd")["status"]
    applied = status["nodes"]["b"]["conditions"][0]
    assert (applied["reason"], "does not know such a tenant" in applied["message"]) == ("Refused", True)
    assert (status["applied"], status["conditions"][1]["reason"]) == (False, "Refused")
    faults = {
        node["name"]: [fault["path"] for fault in node["faults"]] for node in fleet.get("nodes")["items"]
    }
    assert faults == {"a": [], "b": ["quotas[0].tenant"], "c": []}


def test_a_node_is_drained_and_forgotten_by_the_command_line(fleet: Fleet) -> None:
    nodes = three(fleet)
    assert "drains" in fleet.cli("nodes", "drain", "a", "--wait", "10s")
    assert stored_refused(nodes[1]) == {}
    fleet.cli("nodes", "forget", "a")
    fleet.until_states(b="in_sync", c="in_sync")
    assert "zone=z" in fleet.cli("nodes", "label", "b", "zone=z")
    fleet.put_quota("zoned", PAGE, wait="5s", selector={"zone": "z"})
    assert fleet.applied("zoned") == {"b": True}


def stored_refused(node: DataPlane) -> dict[Code, int]:
    with attach(node.socket, [make.space()], timeout_s=5) as client:
        return client.reserve(make.keys(1, "any"), PAGE).refused
