"""A fleet over a network: who gets in, cables that are cut, processes that are killed, nodes that are drained."""

from __future__ import annotations

import pytest
import zmq

from dataplane.client import Code, attach
from dataplane.protocol.codec import encode
from dataplane.protocol.control.messages import VERSION
from dataplane.protocol.control.nodes import Hello
from dataplane.protocol.join import JoinToken, parse_token, token_text
from tests.dataplane import factories as make
from tests.e2e.larder import until
from tests.fleet.fleet import APPLIED_WITHIN, PAGE, WAIT_S, DataPlane, Fleet

NAMES = ("a", "b", "c")
QUIET_MS = 1000


def stored(node: DataPlane, tenant: str, blocks: int) -> int:
    """How many of so many pages a tenant may store on a node."""
    with (
        attach(node.socket, [make.space()], timeout_s=30) as client,
        client.reserve(make.keys(blocks, tenant), PAGE, tenant=tenant) as reservation,
    ):
        return blocks - sum(reservation.refused.values())


def test_only_nodes_with_a_token_join_over_the_network(fleet: Fleet) -> None:
    app, node = fleet.app, fleet.nodes["a"]
    node_answer = app.get("nodes/a")
    assert node_answer["control_url"] == f"tcp://{node.machine.far}:8472"
    assert node_answer["labels"] == {"zone": "a"}
    app.put_quota("acme", 4 * PAGE, wait=APPLIED_WITHIN)
    assert stored(node, "acme", 6) == 4
    assert "zone=a" in app.cli("nodes", "list")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    public, secret = zmq.curve_keypair()
    try:
        with context.socket(zmq.DEALER) as plain, context.socket(zmq.DEALER) as strange:
            for each in (plain, strange):
                each.linger = 0
            strange.curve_serverkey = node_answer["public_key"].encode()
            strange.curve_publickey, strange.curve_secretkey = public, secret
            for each in (plain, strange):
                each.connect(node_answer["control_url"])
                each.send(encode(Hello(VERSION, "foreign")))
                assert not each.poll(QUIET_MS), "no answer without an admitted key"
    finally:
        context.term()
    until(lambda: "peer.refused" in node.log(), "the node reports the unknown peer")
    app.until_states(**dict.fromkeys(NAMES, "in_sync"))


def test_a_token_of_another_management_plane_gets_no_answer(fleet: Fleet) -> None:
    node = fleet.node("d")
    good = parse_token(node.token_file.read_text())
    other_key = zmq.curve_keypair()[0].decode()
    node.token_file.write_text(token_text(JoinToken(good.id, good.secret, other_key, good.addresses)))
    node.start()
    until(lambda: "did not answer" in node.log(), "the node tells that nobody answers", WAIT_S)
    assert "d" not in fleet.app.states()


@pytest.mark.parametrize("side", ["near", "far"])
def test_a_node_behind_a_cut_cable_serves_on_and_catches_up_when_it_heals(fleet: Fleet, side: str) -> None:
    app, nodes = fleet.app, list(fleet.nodes.values())
    app.put_quota("acme", 8 * PAGE, wait=APPLIED_WITHIN)
    nodes[1].machine.cut(side)
    app.until_states(a="in_sync", b="lost", c="in_sync")
    for pages in (4, 3, 2):
        app.put_quota("acme", pages * PAGE, wait="2s")
    app.put_quota("late", PAGE, wait="2s")
    until(lambda: app.applied("acme") == {"a": True, "b": False, "c": True}, "the others have applied it", WAIT_S)
    lost = app.get("quotas/acme")["status"]["nodes"]["b"]["conditions"]
    assert [condition["reason"] for condition in lost] == ["NodeLost", "NodeLost"]
    assert stored(nodes[1], "acme", 12) == 8, "what was in force stays in force"
    nodes[1].machine.heal()
    app.until_states(a="in_sync", b="in_sync", c="in_sync")
    app.until_applied("acme", NAMES)
    assert [stored(node, "late", 3) for node in nodes] == [1, 1, 1]


def test_records_committed_before_a_kill_of_the_management_plane_are_pushed_by_the_next(fleet: Fleet) -> None:
    app, nodes = fleet.app, list(fleet.nodes.values())
    for node in nodes:
        node.machine.cut()
    app.put_quota("acme", 2 * PAGE)
    app.kill()
    for node in nodes:
        node.machine.heal()
    app.start()
    app.until_states(a="in_sync", b="in_sync", c="in_sync")
    app.until_applied("acme", NAMES)
    assert [stored(node, "acme", 5) for node in nodes] == [2, 2, 2]


def test_a_node_is_drained_and_forgotten_by_the_command_line(fleet: Fleet) -> None:
    app = fleet.app
    fleet.node("d", "zone=d").start()
    app.until_states(**dict.fromkeys((*NAMES, "d"), "in_sync"))
    assert "drains" in app.cli("nodes", "drain", "d", "--wait", APPLIED_WITHIN)
    assert refusals(fleet.nodes["b"]) == {}
    app.cli("nodes", "delete", "d")
    app.until_states(**dict.fromkeys(NAMES, "in_sync"))
    assert "zone=z" in app.cli("nodes", "label", "b", "zone=z")
    app.put_quota("zoned", PAGE, wait=APPLIED_WITHIN, selector={"zone": "z"})
    app.until_applied("zoned", ["b"])


def refusals(node: DataPlane) -> dict[Code, int]:
    with attach(node.socket, [make.space()], timeout_s=30) as client:
        return client.reserve(make.keys(1, "any"), PAGE).refused
