"""Keeps one node in sync: greets it, pushes snapshots, handles its answers, and starts over when its process changes.

Pending work follows from the database and from the node's reports, never from memory alone: a task that starts after
a crash finds the same work. While another manager is the leader, the task tracks the node but sends it nothing.
"""

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence

import msgspec
import structlog
import zmq

from app.ingest.fleet import Fleet, FleetNode, SnapshotRefusal
from app.observe.catalogue import PlaneEvent, name_of
from app.observe.catalogue.fleet import (
    NodeDrainEnded,
    NodeDrainStarted,
    NodeDrifted,
    NodeJoined,
    NodeResizeRefused,
    PushAcked,
    PushNacked,
    PushRefused,
    PushSent,
    PushTimedOut,
)
from app.observe.events import EventBus, fields_of
from app.observe.trace import span
from app.push.desired import DesiredState
from app.push.leader_election import CHECK_S, LeaderElection
from app.push.link import NoAnswer, NodeLink, NotUnderstood, new_nonce
from app.push.node_journal import NodeJournal
from app.push.plan import DesiredSnapshot, Push, PushMemory, Reason, Supersede, plan
from app.push.states import PushState
from app.store.base.notify import Notification
from app.store.fleet.pushes import PushRow
from dataplane.base.tracing import Attribute
from dataplane.protocol.control.nodes import Drain, Resize, Resized
from dataplane.protocol.control.snapshots import SNAPSHOT_TYPES, Ack, Nack, Snapshot, SnapshotType
from dataplane.protocol.observed import Observed

HELLO_TIMEOUT_S = 1.0
HELLO_EVERY_S = 0.05
"""Seconds between hellos. Without a connection nothing is sent, so frequent attempts cost nothing."""
HELLO_REFUSED_S = 0.25
RENEW_S = 5.0
"""Seconds without an answer after which a secured connection is renewed: libzmq gives up once it was rejected."""
POLL_S = 2.0
"""Seconds between checks of the database without a notification: another manager may have changed it."""
KEEP_ENDS_S = 60.0
MIN_MOVE_S = 300.0
"""Pin ends that hits have moved are saved every KEEP_ENDS_S seconds if they moved at least MIN_MOVE_S seconds."""


class NodeSync:
    """Keeps the node at one control URL in sync."""

    def __init__(
        self,
        link: NodeLink,
        fleet: Fleet,
        desired: DesiredState,
        journal: NodeJournal,
        bus: EventBus,
        timeout_s: float,
        lead: LeaderElection,
    ) -> None:
        self._link = link
        self._fleet = fleet
        self._desired = desired
        self._journal = journal
        self._bus = bus
        self._timeout_s = timeout_s
        self._lead = lead
        self._term = 0
        """Term of leadership in which this task took the node over; 0 if it has not."""
        self._memory: dict[SnapshotType, PushMemory] = {}
        self._pin_ends_saved_at = self._reported_at = time.monotonic()
        self._drain_at = 0.0
        self._log = structlog.get_logger().bind(url=link.url)

    async def run(self) -> None:
        """Run until cancelled.

        Raises StoreUnavailable when the database is unavailable; the caller then starts it again.
        """
        while True:
            node = self._fleet.at(self._link.address)
            if node is None or not node.welcomed:
                if not await self._join():
                    await asyncio.sleep(HELLO_EVERY_S)
                continue
            signal_count = self._fleet.change_signal.count
            if not self._lead.pushing:
                await self._follow(node, signal_count)
                continue
            if self._term != self._lead.term:
                await self._take_over(node)
            if time.monotonic() - self._pin_ends_saved_at >= KEEP_ENDS_S:
                self._pin_ends_saved_at = time.monotonic()
                await self._save_pin_ends(node.pin_ends, node.seen_at, MIN_MOVE_S)
            await self._settle_draining(node)
            await self._desired.refresh()
            wait_s = POLL_S
            pushed = False
            for kind in SNAPSHOT_TYPES:
                if kind not in node.snapshot_types:
                    continue  # a node of an older release
                step_wait_s = await self._step(node, kind)
                pushed |= step_wait_s is None
                wait_s = min(wait_s, POLL_S if step_wait_s is None else step_wait_s)
            if not pushed:
                await self._fleet.change_signal.wait(wait_s, since=signal_count)

    async def _follow(self, node: FleetNode, signal_count: int) -> None:
        """Track the wanted state and the node's refusals, then wait. For a manager that is not the leader."""
        await self._desired.refresh()
        await self._journal.learn_refusals(self._fleet, node)
        await self._fleet.change_signal.wait(CHECK_S if self._lead.holds else POLL_S, since=signal_count)

    async def _take_over(self, node: FleetNode) -> None:
        """Start to push to a node that has joined."""
        term = self._lead.term
        self._memory = {kind: PushMemory(acked=node.observed.get(kind)) for kind in SNAPSHOT_TYPES}
        self._journal.record_join(node)
        await self._grow(node)
        self._term = term

    async def _join(self) -> bool:
        try:
            welcome = await self._link.hello(HELLO_TIMEOUT_S)
        except NoAnswer:
            await self._renew()
            return False
        except NotUnderstood as error:
            self._log.warning("node.refused_hello", reason=str(error))
            await asyncio.sleep(HELLO_REFUSED_S)
            return False
        if (reason := self._impostor(welcome.node)) is not None:
            self._log.warning("node.refused", node=welcome.node, reason=reason)
            await asyncio.sleep(HELLO_REFUSED_S)
            return False
        self._reported_at = time.monotonic()
        before = self._fleet.at(self._link.address)
        if before is not None and before.epoch != welcome.epoch and self._lead.pushing:
            await self._save_pin_ends(dict(before.pin_ends), before.seen_at, 0)
        node = self._fleet.welcome(welcome, self._link.address, time.monotonic(), time.time())
        self._term = 0
        self._log.info("node.joined", node=node.name, epoch=node.epoch, pid=node.pid)
        self._bus.publish(NodeJoined(node.epoch, node.pid, node.release), node=node.name)
        await self.resync()
        return True

    def _impostor(self, name: str) -> str | None:
        """Return why a node may not use its name, or None if it may."""
        existing = self._fleet.nodes.get(name)
        if self._link.secured:
            expected = self._fleet.at(self._link.address)
            if expected is None or expected.name != name:
                return f"it joined as {'an unknown node' if expected is None else repr(expected.name)}"
        elif existing is not None and existing.public_key:
            return "a node of this name joined from elsewhere; give this one another name (dataplane.node)"
        return None

    async def _renew(self) -> None:
        """Renew a secured connection that has brought no answer for a while."""
        now = time.monotonic()
        if self._link.secured and now - self._reported_at >= RENEW_S:
            self._reported_at = now
            try:
                await self._link.renew()
            except zmq.ZMQError as error:
                self._log.error("node.link_failed", url=self._link.url, reason=str(error))

    async def _settle_draining(self, node: FleetNode) -> None:
        """Make the node drain, or stop draining, as an operator wants. Repeats the request after an outage."""
        if node.stats is None or node.stats.draining == node.draining or node.stats.epoch != node.epoch:
            return
        if time.monotonic() < self._drain_at:
            return
        self._drain_at = time.monotonic() + POLL_S
        try:
            await self._link.ask(Drain(new_nonce(), node.draining), self._timeout_s)
        except (NoAnswer, NotUnderstood) as error:
            self._log.warning("node.not_drained", node=node.name, on=node.draining, reason=str(error))
            return
        if node.stats is not None:
            node.stats.draining = node.draining
        self._fleet.change_signal.notify()
        self._bus.publish(NodeDrainStarted() if node.draining else NodeDrainEnded(), node=node.name)

    async def _save_pin_ends(self, pin_ends: dict[str, float], reported_at: float, least_s: float) -> None:
        """Save pin ends that hits have moved, which only the node knows.

        Done periodically, and before snapshots are sent to a new process, which does not know the moved ends.
        """
        moved = await self._journal.move_ends(pin_ends, reported_at, least_s) if pin_ends else []
        if moved:
            self._log.info("pins.moved", pins=moved[:10], count=len(moved))

    async def _grow(self, node: FleetNode) -> None:
        """Ask a node whose pool is smaller than its wanted size to grow. Continue if it refuses."""
        desired_bytes = await self._journal.desired_capacity(node.name)
        if desired_bytes is None or node.capacity_bytes >= desired_bytes:
            return
        try:
            answer = await self._link.ask(Resize(new_nonce(), desired_bytes), self._timeout_s)
        except (NoAnswer, NotUnderstood) as error:
            self._log.warning("node.resize_refused", node=node.name, pool_bytes=desired_bytes, reason=str(error))
            self._bus.publish(NodeResizeRefused(desired_bytes, str(error)), node=node.name)
            return
        if isinstance(answer, Resized):
            node.capacity_bytes = answer.capacity_bytes
            self._log.info("node.resized", node=node.name, capacity_bytes=answer.capacity_bytes)

    async def resync(self) -> None:
        """Fetch the node's full state. If it does not answer, the next gap or hello causes another attempt."""
        node = self._fleet.at(self._link.address)
        if node is None:
            return
        try:
            description = await self._link.describe(HELLO_TIMEOUT_S)
        except (NoAnswer, NotUnderstood) as error:
            self._log.warning("node.not_described", reason=str(error))
            return
        self._fleet.heartbeat(node.name, description.stats, time.monotonic(), time.time())
        self._bus.touch()

    async def _step(self, node: FleetNode, kind: SnapshotType) -> float | None:
        """Take the planned step for one type.

        Returns the seconds until there may be more to do, or None if a step was taken or this process is no longer the
        leader.
        """
        if not self._lead.pushing:
            return None
        memory = self._memory[kind]
        desired = self._desired.built(kind, node.labels)
        now = time.monotonic()
        step = plan(desired, node.observed.get(kind), memory, now)
        if isinstance(step, Push):
            await self._push(node, kind, desired, memory, step.reason)
            return None
        if isinstance(step, Supersede):
            self._log.warning("generation.overtaken", type=kind, node=node.name, generation=step.generation)
            await self._journal.overtake(kind, step.generation)
            return None
        return POLL_S if step.until is None else max(step.until - now, 0.0)

    async def _push(
        self, node: FleetNode, kind: SnapshotType, desired: DesiredSnapshot, memory: PushMemory, reason: Reason
    ) -> None:
        if reason == "drift":
            self._log.warning("node.drifted", node=node.name, type=kind, generation=desired.generation)
            self._bus.publish(NodeDrifted(kind, desired.generation), node=node.name)
        row = PushRow(
            type=kind,
            node=node.name,
            generation=desired.generation,
            digest=desired.digest,
            state="",
            reason=reason,
            attempt=memory.failures + 1,
            size_bytes=len(desired.body),
            bodies=0,
            sent_at=time.time(),
            faults=[],
        )
        self._bus.publish(PushSent(kind, desired.generation, reason), node=node.name)
        causes = self._causes(node, kind, desired, memory)
        continued = causes[-1] if causes and reason in ("change", "retry") else ""
        links = causes[:-1] if continued else causes
        attributes: dict[str, Attribute] = {
            "larder.node": node.name,
            "larder.type": kind,
            "larder.generation": desired.generation,
            "larder.reason": reason,
        }
        with span("snapshot.push", parent=continued, links=links, kind="client", attributes=attributes) as current:
            started = time.monotonic()
            state = await self._deliver(node, kind, desired, memory, row, current.traceparent)
            current.set({"larder.push.state": state.value})
            if state is PushState.ACKED:
                node.pushes.seconds[kind].observe(time.monotonic() - started)
            else:
                current.failed(state.value)
            row.state = state.value
            node.pushes.ended[row.state] += 1
            self._log.info(
                "push.ended",
                node=node.name,
                type=kind,
                generation=row.generation,
                state=row.state,
                reason=reason,
                attempt=row.attempt,
            )
        event = _ended(state, row)
        notification = Notification(name_of(event), time.time(), fields_of(event), node.name)
        self._bus.publish(event, node=node.name, at=notification.at)
        self._journal.record_push(node, kind, row, notification)

    def _causes(
        self, node: FleetNode, kind: SnapshotType, desired: DesiredSnapshot, memory: PushMemory
    ) -> Sequence[str]:
        """Return the traces of the changes that the node has not applied, oldest first."""
        applied = memory.acked or node.observed.get(kind)
        is_same_store = applied is not None and applied.store == desired.store
        after = applied.generation if applied is not None and is_same_store else desired.generation - 1
        return self._fleet.change_traces.between(kind, after, desired.generation)

    async def _deliver(
        self,
        node: FleetNode,
        kind: SnapshotType,
        desired: DesiredSnapshot,
        memory: PushMemory,
        row: PushRow,
        traceparent: str,
    ) -> PushState:
        """Send a snapshot, and record the answer in `memory`, in `row` and in the fleet. Return how the push ended."""

        def needed(count: int) -> None:
            row.bodies = count

        snapshot = Snapshot(
            type=kind,
            store=desired.store,
            generation=desired.generation,
            nonce=new_nonce(),
            digest=desired.digest,
            body=desired.body,
            traceparent=traceparent,
        )
        try:
            answer = await self._unless_forgotten(
                node, self._link.push(snapshot, self._bodies, needed, self._timeout_s)
            )
        except (NoAnswer, NotUnderstood) as error:
            is_silent = isinstance(error, NoAnswer)
            memory.failed(time.monotonic())
            row.faults = [{"path": "", "code": "timeout" if is_silent else "refuse", "message": str(error)}]
            return PushState.TIMED_OUT if is_silent else PushState.REFUSED
        at, now = time.time(), time.monotonic()
        row.answered_at = at
        if isinstance(answer, Ack):
            observed = Observed(answer.generation, answer.digest, desired.store)
            memory.succeeded(observed)
            row.applied_s = answer.applied_s
            self._fleet.acked(node, kind, observed, now)
            return PushState.ACKED
        memory.refused(desired, now)
        row.faults = [msgspec.structs.asdict(fault) for fault in answer.errors]
        refusal = SnapshotRefusal(row.generation, at, answer.errors)
        self._fleet.nacked(node, kind, refusal, answer.observed)
        return PushState.NACKED

    async def _bodies(self, digests: list[str]) -> dict[str, bytes]:
        bodies = await self._desired.bodies(digests)
        if not self._lead.pushing:
            raise NoAnswer("another manager pushes now")
        return bodies

    async def _unless_forgotten(self, node: FleetNode, push: Coroutine[None, None, Ack | Nack]) -> Ack | Nack:
        """Return the answer. Raise NoAnswer as soon as the process that should answer is known to be gone. The push
        itself has a bound for each answer, and waits for the database while it reads the bodies."""
        push_task = asyncio.ensure_future(push)
        abandoned = asyncio.ensure_future(self._fleet.change_signal.until(lambda: not node.welcomed, math.inf))
        try:
            await asyncio.wait({push_task, abandoned}, return_when=asyncio.FIRST_COMPLETED)
            if push_task.done():
                return push_task.result()
            raise NoAnswer("the node went away")
        finally:
            for task in (push_task, abandoned):
                task.cancel()
            await asyncio.gather(push_task, abandoned, return_exceptions=True)


def _ended(state: PushState, row: PushRow) -> PlaneEvent:
    """Return the event about the end of a push."""
    if state is PushState.ACKED:
        return PushAcked(row.type, row.generation, row.reason)
    kinds = {PushState.NACKED: PushNacked, PushState.TIMED_OUT: PushTimedOut, PushState.REFUSED: PushRefused}
    return kinds[state](row.type, row.generation, row.reason, row.faults)
