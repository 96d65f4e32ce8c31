"""Current state of the nodes. The push worker (hello, answers) and the subscriber (events) write it; all others read
it.

`seen` is the time of the last message of a node (monotonic seconds). A node that was silent for too long is lost. This
is a normal state: `sweep` detects it, and the worker repeats its hello until the node answers.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from app.change_signal import ChangeSignal
from app.observe.histogram import LatencyHistogram
from app.observe.trace import ChangeTraces
from dataplane.protocol.control.nodes import Welcome
from dataplane.protocol.control.snapshots import Fault, SnapshotType
from dataplane.protocol.observed import Observed
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pins import GpuCopyPoolStats, PinStats

ACK_SETTLES_S = 1.0
"""Seconds after an ack for which heartbeats cannot contradict it: they may have left the node before the ack."""


OFFSETS = 10
OFFSET_MIN_S = 5.0
"""Clock offsets below this number of seconds are ignored."""
MAX_ACKS = 64
_UNARMED = ("unarmed", "")
Address = tuple[str, str]
"""Control URL, and the public key of the node there; "" for a socket on this machine."""


@dataclass
class SnapshotRefusal:
    """Last NACK of a type, while it is still valid."""

    generation: int
    at: float
    faults: list[Fault]


@dataclass
class PushCounts:
    """Pushes to one node since this process has known it."""

    ended: Counter[str] = field(default_factory=Counter)
    """Number by final state."""
    seconds: dict[str, LatencyHistogram] = field(default_factory=lambda: defaultdict(LatencyHistogram))
    """Seconds from the push to the ack, by type."""


@dataclass
class FleetNode:
    """State of one node. `observed` and `refused` are by snapshot type."""

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
    refused: dict[str, SnapshotRefusal] = field(default_factory=dict)
    acked: dict[str, float] = field(default_factory=dict)
    """Monotonic time of the last ack, by type."""
    stats: NodeStats | None = None
    public_key: str = ""
    """Public key in Z85; empty for a node on this machine's own sockets."""
    joined_by: str = ""
    """Join token with which the node was admitted."""
    reported_labels: dict[str, str] = field(default_factory=dict)
    """Labels that the node reports."""
    own_labels: dict[str, str] = field(default_factory=dict)
    """Labels that operators set; they override the reported ones."""
    snapshot_types: frozenset[str] = frozenset(("quotas", "pins", "policies"))
    """Types of snapshots that the node's release understands."""
    draining: bool = False
    """Whether an operator wants the node to accept no new blocks."""
    applied: dict[str, deque[tuple[int, float]]] = field(default_factory=dict)
    """Last generations that the node applied, with Unix seconds, by type, oldest first."""
    since: dict[tuple[str, str], float] = field(default_factory=dict)
    """Start (Unix seconds, manager's clock) of each condition that keeps records from taking effect.

    Keys: (`over_limit`, tenant), (`floor_reduced`, tenant), (`expired`, pin), (`degraded`, pin), (`empty`, pin),
    (`no_gpu_copy_pool`, pin), (`lacks_gpu_copies`, pin), (`unarmed`, "").
    """
    pins: dict[str, PinStats] = field(default_factory=dict)
    """Pins of `stats`, by name."""
    offsets: deque[float] = field(default_factory=lambda: deque(maxlen=OFFSETS))
    """Seconds by which the node's clock was ahead of the manager's in recent stats; transit time makes them smaller."""
    clock_is_off: bool = False
    pushes: PushCounts = field(default_factory=PushCounts)
    pin_ends: dict[str, float] = field(default_factory=dict)
    """Unix seconds at which pins end, by name, as last reported by the process: hits may have moved them.

    Kept when another process replaces it, because the new process does not know them.
    """

    def acks(self, kind: SnapshotType) -> Iterable[tuple[int, float]]:
        """Return the generations of a type that the node applied, with their times."""
        return self.applied.get(kind, ())

    def note_applied(self, kind: str, generation: int, at: float) -> None:
        self.applied.setdefault(kind, deque(maxlen=MAX_ACKS)).append((generation, at))

    @property
    def labels(self) -> dict[str, str]:
        return {**self.reported_labels, **self.own_labels}

    @property
    def address(self) -> Address:
        return self.control_url, self.public_key

    @property
    def clock_offset_s(self) -> float:
        """Seconds, rounded, by which the node's clock is ahead of the manager's; 0 if the difference is small."""
        offset = max(self.offsets, default=0.0)
        return float(round(offset)) if abs(offset) >= OFFSET_MIN_S else 0.0

    @property
    def live_stats(self) -> NodeStats | None:
        """Stats of the node, or None if it is lost: old numbers must not look current."""
        return None if self.lost else self.stats


class Fleet:
    """All known nodes by name. `change_signal` notifies waiters of relevant changes."""

    def __init__(self) -> None:
        self.nodes: dict[str, FleetNode] = {}
        self.change_signal = ChangeSignal()
        self.change_traces = ChangeTraces()

    def at(self, address: Address) -> FleetNode | None:
        return next((node for node in self.nodes.values() if node.address == address), None)

    def name_at(self, control_url: str) -> str:
        """Return the name of the node at a socket of this machine; empty if it is not known."""
        node = self.at((control_url, ""))
        return "" if node is None else node.name

    def serves_at(self, control_url: str) -> bool:
        """Return whether the node at a socket of this machine has reported to this process, and is not lost."""
        node = self.at((control_url, ""))
        return node is not None and node.live_stats is not None

    def living(self) -> list[FleetNode]:
        return [node for node in self.nodes.values() if not node.lost]

    def stats(self) -> list[NodeStats]:
        """Return the latest stats of the nodes that are not lost."""
        return [node.live_stats for node in self.nodes.values() if node.live_stats is not None]

    def empty_pins(self) -> list[str]:
        """Return the sorted names of pins that should keep their blocks and hold none on any node that is not lost."""
        holds_by_pin: dict[str, bool] = {}
        for node in self.living():
            unlisted = node.stats is not None and bool(unlisted_tiers(node.stats))
            for pin in node.pins.values():
                holds_by_pin[pin.name] = holds_by_pin.get(pin.name, False) or unlisted or not is_empty(pin)
        return sorted(name for name, holds in holds_by_pin.items() if not holds)

    def connected(self) -> list[FleetNode]:
        """Return the nodes that can be sent requests now, by name."""
        return sorted((n for n in self.nodes.values() if n.welcomed and not n.lost), key=lambda n: n.name)

    def welcome(self, message: Welcome, address: Address, now: float, at: float) -> FleetNode:
        """Apply a node's answer to a hello, with its applied state. Remove any other node at its address."""
        control_url, public_key = address
        for replaced in [n for n in self.nodes.values() if n.address == address and n.name != message.node]:
            del self.nodes[replaced.name]
        node = self.nodes.setdefault(message.node, FleetNode(message.node, control_url, public_key=public_key))
        if node.epoch != message.epoch:
            node.stats = None
            node.pins = {}
            node.refused.clear()
            node.offsets.clear()
        node.control_url = control_url
        if not node.public_key:  # for a node that joined, its enrolment determines the URL
            node.events_url = message.events_url
        node.reported_labels = dict(message.labels)
        node.snapshot_types = frozenset(message.snapshot_types)
        node.epoch = message.epoch
        node.pid = message.pid
        node.release = message.release
        node.engine_socket = message.engine_socket
        node.capacity_bytes = message.capacity_bytes
        node.observed = dict(message.observed)
        node.acked.clear()
        node.welcomed = True
        self._mark_seen(node, now, at)
        self.change_signal.notify()
        return node

    def heartbeat(self, name: str, stats: NodeStats, now: float, at: float) -> None:
        """Apply stats of a node. An epoch other than the hello's means that the process has changed: greet it again."""
        node = self.nodes.get(name)
        if node is None:
            return
        changed = self._mark_seen(node, now, at)
        node.stats = stats
        node.pins = {pin.name: pin for pin in stats.pins}
        node.offsets.append(stats.at - at)
        just_armed = now - node.acked.get("quotas", -1e9) < ACK_SETTLES_S
        node.since = {
            condition: node.since.get(condition, at)
            for condition in _in_the_way(stats)
            if not (just_armed and condition == _UNARMED)
        }
        if stats.epoch != node.epoch:
            changed |= node.welcomed
            node.welcomed = False
        else:
            changed |= self._compare(node, stats, now)
            node.pin_ends = {
                pin.name: pin.expires_at for pin in stats.pins if pin.expires_at is not None and not pin.expired
            }
        if changed:
            self.change_signal.notify()

    def _compare(self, node: FleetNode, stats: NodeStats, now: float) -> bool:
        changed = False
        for kind in set(stats.observed) | set(node.observed):
            reported = stats.observed.get(kind)
            if reported == node.observed.get(kind) or now - node.acked.get(kind, -1e9) < ACK_SETTLES_S:
                continue
            changed = True
            if reported is None:
                del node.observed[kind]
            else:
                node.observed[kind] = reported
        return changed

    def on_message(self, name: str, now: float, at: float) -> None:
        """Record a sign of life, which any event of a node is."""
        node = self.nodes.get(name)
        if node is not None and self._mark_seen(node, now, at):
            self.change_signal.notify()

    def _mark_seen(self, node: FleetNode, now: float, at: float) -> bool:
        node.seen, node.seen_at = now, at
        was_lost, node.lost = node.lost, False
        return was_lost

    def acked(self, node: FleetNode, kind: SnapshotType, observed: Observed, now: float) -> None:
        node.observed[kind] = observed
        node.refused.pop(kind, None)
        node.acked[kind] = now
        if kind == "quotas":
            node.since.pop(_UNARMED, None)
        node.note_applied(kind, observed.generation, time.time())
        self.change_signal.notify()

    def nacked(self, node: FleetNode, kind: SnapshotType, refusal: SnapshotRefusal, observed: Observed | None) -> None:
        node.refused[kind] = refusal
        if observed is not None:
            node.observed[kind] = observed
        self.change_signal.notify()

    def process_exited(self, control_url: str) -> str:
        """Record that the process behind a URL of this machine has ended: its successor must be greeted. Return the
        node's name; empty if it is not known."""
        node = self.at((control_url, ""))
        if node is None:
            return ""
        node.welcomed = False
        self.change_signal.notify()
        return node.name

    def sweep(self, now: float, lost_after_s: float) -> list[FleetNode]:
        """Mark nodes that were silent for too long as lost. Return those that were not lost before."""
        lost = [n for n in self.nodes.values() if not n.lost and now - n.seen > lost_after_s]
        for node in lost:
            node.lost, node.welcomed = True, False
        if lost:
            self.change_signal.notify()
        return lost


def keeps_gpu_copies(pools: Sequence[GpuCopyPoolStats]) -> bool:
    """Return whether any GPU of a node can have GPU copies. A refused pool is listed too, with its problem."""
    return any(pool.readers or not pool.problem for pool in pools)


def is_empty(pin: PinStats) -> bool:
    """Return whether a pin that should keep its blocks on a node keeps none there."""
    return pin.strength != "soft" and not pin.expired and pin.resolved > 0 and not holds_blocks(pin)


def holds_blocks(pin: PinStats) -> bool:
    """Return whether a node has blocks of a pin, in the pool or in a tier."""
    return pin.resident > 0 or any(tier.blocks for tier in pin.tiers.values())


def unlisted_tiers(stats: NodeStats) -> list[str]:
    """Return the names of the node's tiers whose contents are being read or listed, and not known completely yet. A
    tier whose listing failed is not among them, because it is not known when that will end."""
    return [
        tier.name
        for tier in stats.tiers
        if tier.state == "opening" or (tier.listed_blocks is not None and not tier.listing_fault)
    ]


def _in_the_way(stats: NodeStats) -> Iterator[tuple[str, str]]:
    """Yield the conditions that keep applied records from taking effect."""
    unlisted = unlisted_tiers(stats)
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
        if is_empty(pin) and not unlisted:
            yield "empty", pin.name
        if pin.tier == "gpu" and not keeps_gpu_copies(stats.gpu_copy_pools):
            yield "no_gpu_copy_pool", pin.name
        elif pin.tier == "gpu" and pin.gpu_copies < pin.gpu_copies_wanted:
            yield "lacks_gpu_copies", pin.name
    for tier in stats.tiers:
        if not tier.serves:
            yield "out_of_service", tier.name
