"""Incidents of `larder demo --incident`: a change through the API as a named operator, or a failure of a process, while
the load runs. Their effects are real: dashboards, metrics, alerts and `larder why` show them.
"""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ACTOR = "bob"
FLOOD_PINS = 24
CRASHES = 4
CRASH_EVERY_S = 3.0
DISK_AWAY_S = 30.0
STRONG = {"strength": "guaranteed", "note": "all of it must stay"}


@dataclass
class Scene:
    """The Larder in which an incident happens."""

    admin: httpx.Client
    operator: httpx.Client
    """Client of ACTOR."""
    say: Callable[[str], None]
    disk: Path
    """Directory of the disk tier."""
    frozen: int = 0
    """Pid of the process that is suspended until `end`; 0 for none."""

    def node(self) -> dict[str, Any]:
        node: dict[str, Any] = self.admin.get("/api/v1/nodes").json()["items"][0]
        return node

    def put(self, path: str, record: dict[str, Any]) -> None:
        """Create or replace a record as ACTOR. Raises httpx.HTTPError if the API refuses it."""
        reply = self.operator.put(path, json=record)
        if reply.status_code == httpx.codes.PRECONDITION_REQUIRED:
            reply = self.operator.put(path, json=record, headers={"If-Match": "*"})
        reply.raise_for_status()

    def end(self) -> None:
        """Resume a suspended process, so that it can be stopped."""
        if self.frozen:
            os.kill(self.frozen, signal.SIGCONT)
            self.frozen = 0


Steps = Iterator[float]
"""Steps of an incident; each value is the number of seconds until the next."""


def noisy_tenant(scene: Scene) -> Steps:
    scene.put("/api/v1/quotas/scanner", {"limit_bytes": "4MiB", "on_exceed": "reject", "note": "scans are noise"})
    scene.say(f"{ACTOR} lowered the limit of scanner to 4 MiB; look: larder why scanner")
    yield 0


def pin_flood(scene: Scene) -> Steps:
    pinned: set[str] = set()
    scene.say(f"{ACTOR} pins every hot prefix; look: larder why {scene.node()['name']}")
    while len(pinned) < FLOOD_PINS:
        answer = scene.admin.get("/api/v1/prefixes", params={"limit": 100})
        items = answer.json()["items"] if answer.is_success else []
        for prefix in [item for item in items if item["label"] not in pinned][: FLOOD_PINS - len(pinned)]:
            pinned.add(prefix["label"])
            body = {"prefix": prefix["label"], "tenant": prefix["tenant"], **STRONG}
            scene.put(f"/api/v1/pins/flood-{len(pinned)}", body)
        yield 1.0


def bad_policy(scene: Scene) -> Steps:
    scene.put("/api/v1/policies/default", {"algorithm": "noop", "note": "evicting costs time"})
    scene.say(f"{ACTOR} set the policy noop, which evicts nothing; look: larder why {scene.node()['name']}")
    yield 0


def crash_loop(scene: Scene) -> Steps:
    scene.say(f"the data plane is killed {CRASHES} times; look: larder why {scene.node()['name']}")
    killed: set[int] = set()
    while len(killed) < CRASHES:
        pid = scene.node()["pid"]
        if pid and pid not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        yield CRASH_EVERY_S


def partition(scene: Scene) -> Steps:
    node = scene.node()
    scene.frozen = node["pid"]
    os.kill(scene.frozen, signal.SIGSTOP)
    scene.say(f"node {node['name']} neither answers nor reports; look: larder why {node['name']}")
    yield 0


def disk_failure(scene: Scene) -> Steps:
    renamed = scene.disk.with_suffix(".away")
    scene.disk.rename(renamed)
    scene.say(
        f"the directory of the disk tier is gone for {DISK_AWAY_S:.0f} s; look: larder why {scene.node()['name']}"
    )
    yield DISK_AWAY_S
    renamed.rename(scene.disk)
    scene.say("the directory is back, and the tier returns to service within a minute")
    yield 0


INCIDENTS: dict[str, Callable[[Scene], Steps]] = {
    "noisy-tenant": noisy_tenant,
    "pin-flood": pin_flood,
    "partition": partition,
    "bad-policy": bad_policy,
    "crash-loop": crash_loop,
    "disk-failure": disk_failure,
}
