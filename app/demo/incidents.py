"""Incidents of `larder demo --incident`: a change through the API as a named operator, or a failure of a process, while
the load runs. Their effects are real: dashboards, metrics, alerts and `larder why` show them.
"""

import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx

ACTOR = "bob"
FLOOD_PINS = 24
CRASHES = 4
CRASH_EVERY_S = 3.0
DISK_AWAY_S = 30.0
RETRY_S = 1.0
T = TypeVar("T")
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
    undo: ExitStack = field(default_factory=ExitStack)
    """Undoes the failures of the machine: `end` closes it."""

    def node(self) -> dict[str, Any]:
        """Return the node. Raises httpx.HTTPError."""
        node: dict[str, Any] = self.admin.get("/api/v1/nodes").raise_for_status().json()["items"][0]
        return node

    def put(self, path: str, record: dict[str, Any]) -> None:
        """Create or replace a record as ACTOR. Raises httpx.HTTPError if the API refuses it."""
        reply = self.operator.put(path, json=record)
        if reply.status_code == httpx.codes.PRECONDITION_REQUIRED:
            reply = self.operator.put(path, json=record, headers={"If-Match": "*"})
        reply.raise_for_status()

    def end(self) -> None:
        """Resume a suspended process, so that it can be stopped, and return the directory of the disk tier."""
        self.undo.close()


Steps = Iterator[float]
"""Steps of an incident; each value is the number of seconds until the next."""


def _done(call: Callable[[], T]) -> Generator[float, None, T]:
    """Call until the API answers and the process to signal is there. Raises httpx.HTTPStatusError for refusals."""
    while True:
        try:
            return call()
        except (httpx.TransportError, ProcessLookupError):
            pass
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                raise
        yield RETRY_S


def noisy_tenant(scene: Scene) -> Steps:
    record = {"limit_bytes": "4MiB", "on_exceed": "reject", "note": "scans are noise"}
    yield from _done(partial(scene.put, "/api/v1/quotas/scanner", record))
    scene.say(f"{ACTOR} lowered the limit of scanner to 4 MiB; look: larder why scanner")


def pin_flood(scene: Scene) -> Steps:
    pinned: set[str] = set()
    node = yield from _done(scene.node)
    scene.say(f"{ACTOR} pins every hot prefix; look: larder why {node['name']}")
    while len(pinned) < FLOOD_PINS:
        answer = yield from _done(partial(scene.admin.get, "/api/v1/prefixes", params={"limit": 100}))
        items = answer.json()["items"] if answer.is_success else []
        for prefix in [item for item in items if item["label"] not in pinned][: FLOOD_PINS - len(pinned)]:
            pinned.add(prefix["label"])
            body = {"prefix": prefix["label"], "tenant": prefix["tenant"], **STRONG}
            yield from _done(partial(scene.put, f"/api/v1/pins/flood-{len(pinned)}", body))
        yield 1.0


def bad_policy(scene: Scene) -> Steps:
    record = {"algorithm": "noop", "note": "evicting costs time"}
    yield from _done(partial(scene.put, "/api/v1/policies/default", record))
    node = yield from _done(scene.node)
    scene.say(f"{ACTOR} set the policy noop, which evicts nothing; look: larder why {node['name']}")


def crash_loop(scene: Scene) -> Steps:
    node = yield from _done(scene.node)
    scene.say(f"the data plane is killed {CRASHES} times; look: larder why {node['name']}")
    killed: set[int] = set()
    while len(killed) < CRASHES:
        pid = (yield from _done(scene.node))["pid"]
        if pid and pid not in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        yield CRASH_EVERY_S


def partition(scene: Scene) -> Steps:
    def suspend() -> str:
        node = scene.node()
        if not node["pid"]:
            raise ProcessLookupError
        os.kill(node["pid"], signal.SIGSTOP)
        scene.undo.callback(_resume, node["pid"])
        return str(node["name"])

    name = yield from _done(suspend)
    scene.say(f"node {name} neither answers nor reports; look: larder why {name}")


def _resume(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def disk_failure(scene: Scene) -> Steps:
    node = yield from _done(scene.node)
    renamed = scene.disk.with_suffix(".away")
    scene.disk.rename(renamed)
    scene.undo.callback(renamed.rename, scene.disk)
    scene.say(f"the directory of the disk tier is gone for {DISK_AWAY_S:.0f} s; look: larder why {node['name']}")
    yield DISK_AWAY_S
    scene.end()
    scene.say("the directory is back, and the tier returns to service within a minute")


INCIDENTS: dict[str, Callable[[Scene], Steps]] = {
    "noisy-tenant": noisy_tenant,
    "pin-flood": pin_flood,
    "partition": partition,
    "bad-policy": bad_policy,
    "crash-loop": crash_loop,
    "disk-failure": disk_failure,
}
