"""The nodes as they are now. Written by the push worker (hello, answers) and the subscriber (events); read by all.

`seen` is when a node was last heard (monotonic seconds); a node that was silent too long is lost, which is a normal
state with an owner: `sweep` finds it, the worker keeps saying hello until it answers.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from app.pulse import Pulse
from dataplane.protocol.control import Fault, Observed, SnapshotType, Welcome
from dataplane.protocol.events import NodeStats, ReplicaPoolStats

ACK_SETTLES_S = 1.0
"""A heartbeat may have left the node before its ack did: for this long after an ack it cannot contradict it."""


OFFSETS = 10
OFFSET_LEAST_S = 5.0
"""Clocks that are nearer than this are near enough."""
MAX_ACKS = 64
_UNARMED = ("unarmed", "")
Address = tuple[str, str]
"""Control URL, and the public key that answers there; "" for a socket of this machine."""


@dataclass
class Refusal:
    """The last NACK of a type that is still true."""

    generation: int
    at: float
    faults: list[Fault]


@dataclass
class Node:
    """One node. `observed` and `refused` are by snapshot type."""

    name: str
    control_url: str
    events_url: str = ""
    epoch: str = ""
    pid: int = 0
    release: str = ""
    engine_socket: str = ""
    capacity_bytes: int = 0
    seen: float = 0.0
    seen_at: float = 0.0
    welcomed: bool = False
    lost: bool = False
    observed: dict[str, Observed] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    acked: dict[str, float] = field(default_factory=dict)
    """Monotonic time of the last ack, by type."""
    stats: NodeStats | None = None
    public_key: str = ""
    """Z85; empty for a node on this machine's own sockets."""
    joined_by: str = ""
    """The join token that let it in."""
    told_labels: dict[str, str] = field(default_factory=dict)
    """As the node itself says."""
    own_labels: dict[str, str] = field(default_factory=dict)
    """Laid over them by operators."""
    draining: bool = False
    """An operator wants it to take nothing new in."""
    applied: dict[str, deque[tuple[int, float]]] = field(default_factory=dict)
    """Last generations that it applied and when (Unix seconds), by type, oldest first."""
    since: dict[tuple[str, str], float] = field(default_factory=dict)
    """Unix seconds, by our clock, from which what keeps records from their effect was told: (`over_limit`, tenant),
    (`floor_reduced`, tenant), (`expired`, pin), (`degraded`, pin), (`no_replica_pool`, pin), (`unreplicated`, pin),
    (`unarmed`, "")."""
    offsets: deque[float] = field(default_factory=lambda: deque(maxlen=OFFSETS))
    """By how much its clock was ahead of ours when it told, in seconds; the way here makes it look less ahead."""
    clock_told_off: bool = False
    pin_ends: dict[str, float] = field(default_factory=dict)
    """Unix seconds at which pins end, by name, as the process last told: hits may have moved them. Kept when another
    process takes its place, because that one does not know."""

    def acks(self, kind: SnapshotType) -> Iterable[tuple[int, float]]:
        """Generations of a type that it applied, and when."""
        return self.applied.get(kind, ())

    def note_applied(self, kind: str, generation: int, at: float) -> None:
        self.applied.setdefault(kind, deque(maxlen=MAX_ACKS)).append((generation, at))

    @property
    def labels(self) -> dict[str, str]:
        return {**self.told_labels, **self.own_labels}

    @property
    def address(self) -> Address:
        return self.control_url, self.public_key

    @property
    def clock_offset_s(self) -> float:
        """By how much its clock is ahead of ours, in whole seconds; 0 when it is near enough."""
        offset = max(self.offsets, default=0.0)
        return float(round(offset)) if abs(offset) >= OFFSET_LEAST_S else 0.0

    @property
    def live_stats(self) -> NodeStats | None:
        """Its stats, unless it is lost: old numbers must not look like the present."""
        return None if self.lost else self.stats


class Fleet:
    """All known nodes by name. `pulse` beats when something that a waiter may care about changed."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.pulse = Pulse()

    def at(self, address: Address) -> Node | None:
        return next((node for node in self.nodes.values() if node.address == address), None)

    def living(self) -> list[Node]:
        return [node for node in self.nodes.values() if not node.lost]

    def stats(self) -> list[NodeStats]:
        """Latest stats of the nodes that are not lost."""
        return [node.live_stats for node in self.nodes.values() if node.live_stats is not None]

    def connected(self) -> list[Node]:
        """Nodes that can be asked for something now, by name."""
        return sorted((n for n in self.nodes.values() if n.welcomed and not n.lost), key=lambda n: n.name)

    def welcome(self, message: Welcome, address: Address, now: float, at: float) -> Node:
        """A node said who it is: what it has applied is adopted. It replaces any other at its address."""
        control_url, public_key = address
        for other in [n for n in self.nodes.values() if n.address == address and n.name != message.node]:
            del self.nodes[other.name]
        node = self.nodes.setdefault(message.node, Node(message.node, control_url, public_key=public_key))
        if node.epoch != message.epoch:
            node.stats = None
            node.refused.clear()
            node.offsets.clear()
        node.control_url = control_url
        if not node.public_key:  # of a node that joined it is known better from where it was seen to come
            node.events_url = message.events_url
        node.told_labels = dict(message.labels)
        node.epoch = message.epoch
        node.pid = message.pid
        node.release = message.release
        node.engine_socket = message.engine_socket
        node.capacity_bytes = message.capacity_bytes
        node.observed = dict(message.observed)
        node.acked.clear()
        node.welcomed = True
        self._heard(node, now, at)
        self.pulse.beat()
        return node

    def heartbeat(self, name: str, stats: NodeStats, now: float, at: float) -> None:
        """Stats came in. Another epoch than that of the hello means that the process is another one: say hello."""
        node = self.nodes.get(name)
        if node is None:
            return
        changed = self._heard(node, now, at)
        node.stats = stats
        node.offsets.append(stats.at - at)
        just_armed = now - node.acked.get("quotas", -1e9) < ACK_SETTLES_S
        node.since = {
            what: node.since.get(what, at)
            for what in _in_the_way(stats)
            if not (just_armed and what == _UNARMED)
        }
        if stats.epoch != node.epoch:
            changed |= node.welcomed
            node.welcomed = False
        else:
            changed |= self._compare(node, stats, now)
            node.pin_ends = {
                pin.name: pin.expires_at
                for pin in stats.pins
                if pin.expires_at is not None and not pin.expired
            }
        if changed:
            self.pulse.beat()

    def _compare(self, node: Node, stats: NodeStats, now: float) -> bool:
        changed = False
        for kind in set(stats.observed) | set(node.observed):
            told = stats.observed.get(kind)
            reported = None if told is None else Observed(told.generation, told.digest, told.store)
            if reported == node.observed.get(kind) or now - node.acked.get(kind, -1e9) < ACK_SETTLES_S:
                continue
            changed = True
            if reported is None:
                del node.observed[kind]
            else:
                node.observed[kind] = reported
        return changed

    def heard(self, name: str, now: float, at: float) -> None:
        """Any event of a node is a sign of life."""
        node = self.nodes.get(name)
        if node is not None and self._heard(node, now, at):
            self.pulse.beat()

    def _heard(self, node: Node, now: float, at: float) -> bool:
        node.seen, node.seen_at = now, at
        was_lost, node.lost = node.lost, False
        return was_lost

    def acked(self, node: Node, kind: SnapshotType, observed: Observed, now: float) -> None:
        node.observed[kind] = observed
        node.refused.pop(kind, None)
        node.acked[kind] = now
        if kind == "quotas":
            node.since.pop(_UNARMED, None)
        node.note_applied(kind, observed.generation, time.time())
        self.pulse.beat()

    def nacked(self, node: Node, kind: SnapshotType, refusal: Refusal, observed: Observed | None) -> None:
        node.refused[kind] = refusal
        if observed is not None:
            node.observed[kind] = observed
        self.pulse.beat()

    def left(self, control_url: str) -> None:
        """The process behind a URL of this machine is known to have ended: its successor must be greeted."""
        node = self.at((control_url, ""))
        if node is not None:
            node.welcomed = False
            self.pulse.beat()

    def sweep(self, now: float, lost_after_s: float) -> list[Node]:
        """Mark nodes that were silent too long; returns those that were not lost before."""
        gone = [n for n in self.nodes.values() if not n.lost and now - n.seen > lost_after_s]
        for node in gone:
            node.lost, node.welcomed = True, False
        if gone:
            self.pulse.beat()
        return gone


def keep_replicas(pools: Sequence[ReplicaPoolStats]) -> bool:
    """Whether any of a node's GPUs can have replicas: one that was refused is told of as well, with its problem."""
    return any(pool.readers or not pool.problem for pool in pools)


def _in_the_way(stats: NodeStats) -> Iterator[tuple[str, str]]:
    """What keeps applied records from having their effect."""
    if not stats.armed:
        yield _UNARMED
    for tenant in stats.tenants:
        if tenant.over_limit:
            yield "over_limit", tenant.tenant
        if tenant.mode == "enforce" and tenant.effective_floor_bytes < tenant.floor_bytes:
            yield "floor_reduced", tenant.tenant
    for pin in stats.pins:
        if pin.expired:
            yield "expired", pin.name
        if pin.degraded:
            yield "degraded", pin.name
        if pin.tier == "gpu" and not keep_replicas(stats.replica_pools):
            yield "no_replica_pool", pin.name
        elif pin.tier == "gpu" and pin.replicas < pin.replicas_wanted:
            yield "unreplicated", pin.name
