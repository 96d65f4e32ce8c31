"""Joining over a network, and what does not let a node begin."""

from __future__ import annotations

import json
import shutil
import time

import pytest
import zmq

from dataplane.protocol.codec import encode
from dataplane.protocol.control.messages import VERSION
from dataplane.protocol.control.nodes import Hello
from dataplane.protocol.join import JoinToken
from dataplane.sockets.curve import NodeKeyPair, key_pair
from tests.e2e.larder import until
from tests.fleet.fleet import APPLIED_WITHIN, PAGE, WAIT_S, DataPlane, Fleet, Manager
from tests.fleet.test_machines import NAMES, QUIET_MS, stored
from tests.fleet.unknown import UnknownNode

HOUR_S = 3600
OTHER_CLOCK = """
import time
now = time.time
time.time = lambda: now() + {ahead_s}
"""
"""A machine whose clock is wrong."""
OFTEN = """
import dataplane.membership
dataplane.membership.ANNOUNCE_S = 0.5
"""
"""A data plane that says where it is all the time, and not every five minutes."""


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_a_node_with_a_wrong_clock_joins_and_its_clock_is_shown(fleet: Fleet, ahead_s: int) -> None:
    app = fleet.app
    node = fleet.node("d", ttl_s=60)
    node.altered = OTHER_CLOCK.format(ahead_s=ahead_s)
    node.start()
    app.until_states(**dict.fromkeys((*NAMES, "d"), "in_sync"))
    before = time.time()
    app.put_quota("acme", 2 * PAGE, wait=APPLIED_WITHIN)
    assert stored(node, "acme", 4) == 2

    def off() -> bool:
        return abs(app.get("nodes/d")["clock_offset_s"] - ahead_s) < 5

    until(off, "its clock is reported", WAIT_S)
    assert [app.get(f"nodes/{name}")["clock_offset_s"] for name in NAMES] == [0, 0, 0]
    assert f" s {'ahead' if ahead_s > 0 else 'behind'})" in app.cli("nodes", "list")
    until(lambda: "node.clock_skewed" in events(app), "it is an event", WAIT_S)
    for at in app.get("quotas/acme")["status"]["nodes"].values():
        for condition in at["conditions"]:
            assert condition["status"] == "True"
            assert before - 5 < condition["since"] < time.time() + 5, "by our clock"
    app.put_quota("acme", PAGE, wait=APPLIED_WITHIN)
    assert app.applied("acme") == dict.fromkeys((*NAMES, "d"), True)


def events(app: Manager) -> list[str]:
    return [event["name"] for event in app.get("events/history")["items"]]


def test_a_node_that_lost_its_key_joins_again_under_its_name_once_it_was_forgotten(fleet: Fleet) -> None:
    app, node = fleet.app, fleet.node("d", "zone=d")
    node.start()
    app.until_states(**dict.fromkeys((*NAMES, "d"), "in_sync"))
    before = key_pair(node.folder / "curve.key")
    node.kill()
    shutil.rmtree(node.folder)
    node.folder.mkdir()
    node.token_file.touch(mode=0o600)
    node.token_file.write_text(fleet.token(node.machine))
    assert node.start().ended() == 1
    assert "name_taken" in node.log()
    assert "larder nodes delete d" in node.log()
    app.until_states(**dict.fromkeys(NAMES, "in_sync"), d="lost")
    app.cli("nodes", "delete", "d")
    node.start()
    app.until_states(**dict.fromkeys((*NAMES, "d"), "in_sync"))
    assert app.get("nodes/d")["public_key"] != before.public
    app.put_quota("acme", 2 * PAGE, wait=APPLIED_WITHIN)
    assert stored(node, "acme", 4) == 2
    with UnknownNode("d", before) as thief:
        key = json.loads((node.folder / "joined.json").read_text())["key"]
        thief.ask(JoinToken("", b"", key, []), app.join_port)
        assert thief.answer().code == "unknown_node", "the key before is unknown"


@pytest.mark.full
def test_the_management_planes_key_is_changed_and_no_node_is_lost(empty_fleet: Fleet) -> None:
    fleet, app = empty_fleet, empty_fleet.manager().start()
    here, away = fleet.node("here"), fleet.node("away")
    for node in (here, away):
        node.altered = OFTEN
        node.start()
    app.until_states(here="in_sync", away="in_sync")
    away.kill()
    app.until_states(here="in_sync", away="lost")
    old = key_pair(app.folder / "manager.key")
    new = app.cli("manager-key", "next").splitlines()[0].rpartition(" ")[2]
    until(
        lambda: app.nodes()["here"]["admitted_managers"] == [old.public, new],
        "it is reported while everything runs",
        WAIT_S,
    )
    refused = app.try_cli("manager-key", "switch")
    assert (refused.returncode, "not known yet to: away;" in refused.stderr) == (1, True)
    app.cli("manager-key", "switch", "--force")
    for pair in (old, key_pair(app.folder / "manager.key")):
        assert admits(here, pair, WAIT_S)
    app.stop()
    app.start()
    app.until_states(here="in_sync", away="lost")
    app.put_quota("acme", PAGE, wait=APPLIED_WITHIN)
    assert stored(here, "acme", 3) == 1
    until(lambda: app.nodes()["here"]["admitted_managers"] == [new], "the key before is dropped", WAIT_S)
    record = json.loads((here.folder / "joined.json").read_text())
    assert (record["key"], record["managers"], record["next_key"]) == (new, [new], "")
    assert not admits(here, old, QUIET_MS / 1000)
    away.token_file.write_text(fleet.token(away.machine))
    away.start()
    app.until_states(here="in_sync", away="in_sync")


def admits(node: DataPlane, pair: NodeKeyPair, wait_s: float) -> bool:
    """Whether who has this key is answered on a node's control socket within so long."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        with context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.curve_serverkey = key_pair(node.folder / "curve.key").public.encode()
            socket.curve_publickey, socket.curve_secretkey = pair.public.encode(), pair.secret
            socket.connect(f"tcp://{node.machine.far}:8472")
            socket.send(encode(Hello(VERSION, "test")))
            return bool(socket.poll(int(wait_s * 1000)))
    finally:
        context.term()
