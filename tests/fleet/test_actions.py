"""Actions and records on three data planes: one answer for each, whatever becomes of one of them."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from dataplane.client import attach
from tests.dataplane import factories as make
from tests.e2e.larder import until
from tests.fleet.fleet import APPLIED_WITHIN, PAGE, WAIT_S, DataPlane, Fleet, Manager

CHAIN = make.keys(4, "prefix")
PREFIX = {"model": make.MODEL, "keys": [key.hex() for key in CHAIN]}
DRY_RUN = {"quotas": {"acme": {"limit_bytes": PAGE}}}
AWAY = "b is not connected; try again when it is"
FLOOR = 16 * make.MIB
"""Twice what a node holds."""
FEW_KEYS = 4096
SMALLER = f"""
from dataplane.core.operator import intent
intent.MAX_PINNED_KEYS = {FEW_KEYS}
"""
"""A data plane of a release that takes fewer keys than the management plane knows of."""


def store(node: DataPlane, blocks: int) -> None:
    """The start of the chain."""
    with (
        attach(node.socket, [make.space()], timeout_s=30) as client,
        client.reserve(CHAIN[:blocks], PAGE) as reservation,
    ):
        reservation.commit()


def act(app: Manager, verb: str, body: dict[str, Any], **query: str) -> dict[str, Any]:
    """Each node's part of the answer."""
    answer = app.ask("POST", f"actions/{verb}", body, **query)
    assert answer["total"] == len(answer["items"])
    return {item["node"]: item for item in answer["items"]}


def hits(app: Manager) -> dict[str, int]:
    return {name: sum(item["hit_chunks"].values()) for name, item in act(app, "lookup", PREFIX).items()}


def test_every_action_is_answered_once_by_each_node(fleet: Fleet) -> None:
    app = fleet.app
    store(fleet.nodes["a"], 2)
    store(fleet.nodes["b"], 4)
    assert hits(app) == {"a": 2, "b": 4, "c": 0}
    located = app.ask("POST", "actions/locate", PREFIX)
    assert [location["node"] for location in located["items"]] == ["b", "a"]
    assert located["failed_nodes"] == []
    verified = act(app, "verify", {}, wait="20s")
    assert {name: item["verification"]["checked"] for name, item in verified.items()} == {"a": 2, "b": 4, "c": 0}
    tried = app.ask("POST", "actions/dry-run", DRY_RUN)
    assert [(item["node"], item["accepted"]) for item in tried["items"]] == [("a", True), ("b", True), ("c", True)]
    assert tried["accepted"]
    assert app.get("quotas")["total"] == 0
    demoted = act(app, "demote", PREFIX)
    assert [item["error"] for item in demoted.values()] == [None] * 3
    assert hits(app) == {"a": 2, "b": 4, "c": 0}
    assert set(act(app, "invalidate", {**PREFIX, "node": "b"})) == {"b"}
    assert hits(app) == {"a": 2, "b": 0, "c": 0}
    cleared = act(app, "clear", {"confirm": True})
    assert all(item["sweep"] for item in cleared.values())
    assert hits(app) == {"a": 0, "b": 0, "c": 0}


@pytest.mark.parametrize("how", ["cut off", "stopped", "killed"])
def test_a_node_that_is_unavailable_has_its_own_result_and_others_run_the_action(fleet: Fleet, how: str) -> None:
    app, node = fleet.app, fleet.nodes["b"]
    for each in fleet.nodes.values():
        store(each, 4)
    if how == "cut off":
        node.machine.cut("far")
    elif how == "stopped":
        node.freeze()
    else:
        node.kill()
    at_once = act(app, "lookup", PREFIX)
    messages = rf"b: tcp://{re.escape(node.machine.far)}:8472 (did not answer within 5 s|cannot be reached)|{AWAY}"
    assert re.fullmatch(messages, at_once["b"]["error"]), at_once["b"]["error"]
    assert [sum(at_once[name]["hit_chunks"].values()) for name in "ac"] == [4, 4]
    app.until_states(a="in_sync", b="lost", c="in_sync")
    for verb, body in (
        ("lookup", PREFIX),
        ("verify", {}),
        ("demote", PREFIX),
        ("invalidate", PREFIX),
        ("clear", {"confirm": True}),
        ("dry-run", DRY_RUN),
    ):
        answer = act(app, verb, body)
        assert {name: item["error"] for name, item in answer.items()} == {"a": None, "b": AWAY, "c": None}, verb
    assert app.ask("POST", "actions/dry-run", DRY_RUN)["accepted"], "by all that can say anything"
    assert not app.ask("POST", "actions/dry-run", {**DRY_RUN, "nodes": ["a", "b"]})["accepted"]
    located = app.ask("POST", "actions/locate", PREFIX)
    assert (located["items"], located["failed_nodes"]) == ([], [{"node": "b", "sweep": None, "error": AWAY}])
    alone = app.api.post("/api/v1/actions/clear", json={"confirm": True, "node": "b"})
    assert (alone.status_code, alone.json()["detail"]) == (503, AWAY)


def test_a_node_that_refuses_is_shown_alone_with_reason_and_time(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    app = fleet.app
    before = app.get("pins?limit=1")["total"]
    assert before == 0
    smaller = fleet.nodes["b"]
    smaller.kill()
    monkeypatch.setattr(smaller, "altered", SMALLER)
    smaller.start()
    app.until_states(a="in_sync", b="in_sync", c="in_sync")
    for number in range(2):
        chain = make.keys(FEW_KEYS, number)
        body = {"model": make.MODEL, "keys": [key.hex() for key in chain], "selector": {"zone": "b"}}
        app.ask("PUT", f"pins/p{number:02}", body)
    app.until_states(a="in_sync", b="nacked", c="in_sync")
    app.put_quota("acme", PAGE, wait=APPLIED_WITHIN)
    assert app.applied("acme") == {"a": True, "b": True, "c": True}, "quotas are another snapshot"
    # A guaranteed pin of blocks that are not stored would say that it holds nothing.
    everywhere = {"model": make.MODEL, "keys": [key.hex() for key in CHAIN], "strength": "soft"}
    app.ask("PUT", "pins/everywhere", everywhere, wait="10s")
    deadline = time.monotonic() + 90
    while True:  # nodes tell twice a second what they count
        status = app.ask("GET", "pins/everywhere")["status"]
        statuses = [each["status"] for at in status["nodes"].values() for each in at["conditions"]]
        if "Unknown" not in statuses or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    conditions = {
        name: [(each["type"], each["status"], each["reason"]) for each in at["conditions"]]
        for name, at in status["nodes"].items()
    }
    assert conditions == {
        "a": [("Applied", "True", "Applied"), ("Effective", "True", "Effective")],
        "b": [("Applied", "False", "Refused"), ("Effective", "False", "Refused")],
        "c": [("Applied", "True", "Applied"), ("Effective", "True", "Effective")],
    }
    accepted, applied, effective = status["conditions"]
    assert (accepted["status"], accepted["reason"]) == ("True", "Committed")
    for each in (applied, effective):
        assert (each["status"], each["reason"]) == ("False", "Refused")
        assert each["message"].startswith("on 2 of 3 nodes; b refused generation ")
        assert f"expected at most {FEW_KEYS} keys of pins, got " in each["message"]
        assert each["since"] >= accepted["since"]
    assert {name: [f["path"] for f in node["faults"]] for name, node in app.nodes().items()} == {
        "a": [],
        "b": ["pins"],
        "c": [],
    }
    refused = f"b refused pins: pins: expected at most {FEW_KEYS} keys of pins, got "
    for shown in (app.cli("status"), app.cli("nodes", "list")):
        assert refused in shown
        assert re.search(r"^b +nacked ", shown, re.MULTILINE), shown
        assert re.search(r"^a +in_sync ", shown, re.MULTILINE), shown
    app.ask("DELETE", "pins/p00")
    app.ask("DELETE", "pins/p01")
    app.until_states(a="in_sync", b="in_sync", c="in_sync")
    smaller.kill()


def test_a_floor_larger_than_a_node_is_applied_and_shown_as_not_in_effect(fleet: Fleet) -> None:
    app = fleet.app
    refused = app.api.put(
        "/api/v1/quotas/big", json={"floor_bytes": FLOOR, "selector": {"zone": "b"}}, params={"wait": "5s"}
    )
    assert refused.status_code == 409, "the node is known to be too small"
    app.ask("PUT", "quotas/big", {"floor_bytes": FLOOR, "selector": {"zone": "big"}})
    app.cli("nodes", "label", "b", "zone=big")

    def effective() -> dict[str, list[tuple[str, str]]]:
        nodes = app.get("quotas/big")["status"]["nodes"]
        return {name: [(e["status"], e["reason"]) for e in at["conditions"]] for name, at in nodes.items()}

    expected = {"b": [("True", "Applied"), ("False", "FloorReduced")]}
    until(lambda: effective() == expected, "the node tells that it cannot guarantee so much", WAIT_S)
    over_all = app.get("quotas/big")["status"]["conditions"][2]
    assert over_all["message"] == "on 0 of 1 nodes; b guarantees 8 MiB of the floor of 16 MiB: its pool is too small"
    assert over_all["since"] > 0
