"""The control socket: receives snapshots and requests of the management plane, and answers them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import get_args

import structlog
import zmq

from dataplane import __version__
from dataplane.base import tracing
from dataplane.base.connection_guard import HANDSHAKE_BYTES, ConnectionGuard
from dataplane.base.tracing import Attribute
from dataplane.core.node import Node
from dataplane.core.operator.hot_prefixes import hot_prefix, hot_prefixes
from dataplane.core.operator.intent import MAX_BODY_BYTES
from dataplane.core.operator.listing import list_blocks, look_up
from dataplane.core.operator.tier_records import TierRecords
from dataplane.core.pool.sweeps import SweepStart
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.lookups import Blocks, ListBlocks, Looked, LookupChain
from dataplane.protocol.control.messages import VERSION, ControlRefused, ControlReply, ControlRequest
from dataplane.protocol.control.moves import MAX_MOVE_S, CancelMove, Move, Moved, ReadMove
from dataplane.protocol.control.nodes import (
    DescribeNode,
    Description,
    Drain,
    Expel,
    Expelled,
    Hello,
    NodeDrained,
    Resize,
    Resized,
    Welcome,
)
from dataplane.protocol.control.prefixes import ListPrefixes, PrefixesListed, PrefixKeys, Trace, TracePart
from dataplane.protocol.control.requests import FindRequests, RequestsFound
from dataplane.protocol.control.scopes import Clear, ClearGateway, CountBlocks, Counted, Demote, Invalidate, Swept
from dataplane.protocol.control.sessions import ActOnSession, ListSessions
from dataplane.protocol.control.snapshots import (
    MAX_SNAPSHOT_BYTES,
    Ack,
    Bodies,
    Nack,
    NeedBodies,
    Snapshot,
    SnapshotType,
)
from dataplane.protocol.control.verification import DigestEngine, Verification, Verified, Verify
from dataplane.protocol.events import SnapshotApplied, SnapshotRefused
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.usage import ReadUsage, UsageRead
from dataplane.sockets.curve import Gate

MAX_PENDING = 4
MAX_LABEL_CHARACTERS = 128
MAX_COUNT = (1 << 62) - 1
MESSAGES_PER_TURN = 4
BODIES_TIMEOUT_S = 30.0

_decoder = decoder(ControlRequest)
Act = Invalidate | Drain | Demote | Clear | ClearGateway | Verify | Move | CancelMove | ActOnSession | Resize
Question = (
    CountBlocks
    | LookupChain
    | ListBlocks
    | Verification
    | ReadMove
    | ListPrefixes
    | PrefixKeys
    | Trace
    | ReadUsage
    | FindRequests
    | ListSessions
)
_TIMES = {Trace: "since", ReadUsage: "noted"}
"""Fields with Unix seconds that `_check_numbers` checks."""
_COUNTS = {
    Trace: "after",
    LookupChain: "after",
    ListBlocks: "after",
    ListSessions: "after",
    ReadUsage: "after",
    Snapshot: "generation",
}
"""Fields with a count that `_check_numbers` checks."""
log = structlog.stdlib.get_logger()


@dataclass(slots=True)
class _Pending:
    """A snapshot of pins that waits for bodies."""

    snapshot: Snapshot
    since: float
    needed: frozenset[str]
    bodies: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Introduction:
    """The node's description of itself in `Welcome`."""

    pid: int
    engine_socket: str
    events_url: str
    labels: dict[str, str]


class ControlServer:
    """Serves managers. Each message is one step and is answered."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        url: str,
        node: Node,
        tiers: TierRecords,
        introduction: Introduction,
        stats: Callable[[float], NodeStats],
        last_seq: Callable[[], int],
        clock: Callable[[], float],
        acknowledged: Callable[[Snapshot], None],
        drained: Callable[[bool], None],
        expel: Callable[[Expel], Expelled],
        digest: Callable[[DigestEngine, Callable[[ControlReply], None]], None] | None,
        gate: Gate | None,
    ) -> None:
        """`tiers` opens the tiers of records. `stats` returns the node's state at a time. `expel` expels an engine's
        process, or raises ProtocolError. `digest` starts reading an engine's memory, and the answer follows later; it
        raises ProtocolError, and is None if this node copies for no engine. `gate` authorizes peers on a socket that
        other users can reach."""
        if url.startswith("ipc://"):
            Path(url.removeprefix("ipc://")).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_SNAPSHOT_BYTES + 4096)
        self.socket.setsockopt(zmq.LINGER, 200)
        self.socket.setsockopt(zmq.IPV6, int("[" in url))
        self._gate = gate
        if gate is not None:
            gate.guard(self.socket, "control")
        self.guard = ConnectionGuard(self.socket, "control", known_bytes=-1 if gate is None else HANDSHAKE_BYTES)
        self.socket.bind(url)
        self.url = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._node = node
        self._tiers = tiers
        self.introduction = introduction
        self._stats = stats
        self._last_seq = last_seq
        self._clock = clock
        self._acknowledged = acknowledged
        self._drained = drained
        self._pending: dict[tuple[bytes, bool], _Pending] = {}
        """By peer and dry-run flag: a dry run must not replace a real snapshot."""
        self._digest = digest
        self._expel = expel

    def on_readable(self) -> bool:
        """Answer waiting messages, a bounded number per turn, because engines have priority. Return True if messages
        may be left."""
        for _ in range(MESSAGES_PER_TURN):
            try:
                received = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
            if self._gate is not None and not self._gate.admits(received[-1]):
                continue
            frames = [frame.bytes for frame in received]
            reply = self._answer(frames)
            if reply is not None:
                self._send(frames[0], reply)
        return True

    def _answer(self, frames: list[bytes]) -> ControlReply | None:
        if len(frames) != 2:
            return ControlRefused("malformed", "expected one frame")
        nonce = ""
        try:
            message = decode(_decoder, frames[1])
            nonce = _nonce(message)
            _check_numbers(message)
            return self._serve(frames[0], message)
        except ProtocolError as error:
            self._node.totals.malformed_messages += error.code is Code.MALFORMED
            return ControlRefused(error.code.name.lower(), error.message, error.field, nonce)
        except Exception:  # a bug in one message must not take the cache from all engines
            log.exception("control.request_failed")
            return ControlRefused("unsupported", "the node failed to handle this message; see its log", "", nonce)

    def _send(self, peer: bytes, reply: ControlReply) -> None:
        try:
            self.socket.send_multipart([peer, encode(reply)], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # the queue is full: the peer asks again after its timeout
            log.warning("control.send_failed", error=str(error))

    def _serve(self, peer: bytes, message: ControlRequest) -> ControlReply | None:
        if isinstance(message, Hello):
            return self._welcome(message)
        if isinstance(message, DescribeNode):
            now = self._clock()
            faults = self._node.check() if message.audit else []
            observed = dict(self._node.intent.observed)
            return Description(message.nonce, self._last_seq(), self._stats(now), observed, faults)
        if isinstance(message, Snapshot):
            return self._snapshot(peer, message)
        if isinstance(message, Bodies):
            return self._bodies(peer, message)
        if isinstance(message, DigestEngine):
            if self._digest is None:
                raise ProtocolError(Code.UNSUPPORTED, "this node copies for no engine", "gateway")
            self._digest(message, partial(self._send, peer))
            return None
        if isinstance(message, Expel):
            return self._expel(message)
        if isinstance(message, Act):
            return self._act(peer, message)
        return self._look(message)

    def _act(self, peer: bytes, message: Act) -> ControlReply | None:
        node, now = self._node, self._clock()
        if isinstance(message, Invalidate):
            self._invalidated(peer, _swept(message.nonce, node.invalidate(message.scope, now)))
            return None
        if isinstance(message, Drain):
            node.drain(on=message.on)
            self._drained(message.on)
            return NodeDrained(message.nonce, message.on)
        if isinstance(message, Demote):
            return _swept(message.nonce, node.demote(message.scope, now))
        if isinstance(message, Clear):
            swept = _swept(message.nonce, node.clear(now, permanent=message.permanent))
            self._invalidated(peer, swept)
            return None
        if isinstance(message, ClearGateway):
            begun = node.clear_gateway(message.gateway, now, force=message.force)
            self._invalidated(peer, _swept(message.nonce, begun))
            return None
        if isinstance(message, Verify):
            return Verified(message.nonce, node.verifying.start(message.scope, now))
        if isinstance(message, Move):
            return Moved(message.nonce, node.moves(message.tier).start(message, now))
        if isinstance(message, CancelMove):
            return Moved(message.nonce, node.moves().cancel(message.number))
        if isinstance(message, ActOnSession):
            return node.act_on_session(message, now)
        node.resize(message.capacity_bytes, now)
        return self._resized(message)

    def _invalidated(self, peer: bytes, reply: Swept) -> None:
        """Answer when the invalidation is recorded for tiers."""
        self._node.when_recorded(partial(self._send, peer, reply))

    def _look(self, message: Question) -> ControlReply:
        node, now = self._node, self._clock()
        if isinstance(message, CountBlocks):
            return Counted(message.nonce, *node.count_blocks(message))
        if isinstance(message, LookupChain):
            return Looked(message.nonce, *look_up(node.pool, message))
        if isinstance(message, ListBlocks):
            return Blocks(message.nonce, *list_blocks(node.pool, message))
        if isinstance(message, Verification):
            return Verified(message.nonce, node.verifying.state(message.number))
        if isinstance(message, ReadMove):
            return Moved(message.nonce, node.moves().state(message.number))
        if isinstance(message, ListPrefixes):
            found = hot_prefixes(node.pool, node.prefixes, message.by, message.tenant, message.limit, now)
            return PrefixesListed(message.nonce, found)
        if isinstance(message, PrefixKeys):
            return PrefixesListed(message.nonce, [hot_prefix(node.pool, node.prefixes, message.label, now)])
        if isinstance(message, Trace):
            return TracePart(message.nonce, *node.trace(message.since, message.after))
        if isinstance(message, FindRequests):
            return RequestsFound(message.nonce, node.requests.find(message.request))
        if isinstance(message, ListSessions):
            return node.list_sessions(message, now)
        return UsageRead(message.nonce, now, *node.read_usage(message.noted, message.after, now))

    def _resized(self, message: Resize) -> ControlReply:
        log.info(
            "pool.resized",
            capacity_bytes=message.capacity_bytes,
            max_blocks=self._node.max_blocks,
            note="the number of blocks is bounded by max_blocks, which is fixed at start",
        )
        return Resized(message.nonce, message.capacity_bytes)

    def _welcome(self, message: Hello) -> ControlReply:
        if message.version != VERSION:
            return ControlRefused(
                Code.VERSION_MISMATCH.name.lower(), f"this node speaks {VERSION}, got {message.version}", "version"
            )
        options = self._node.options
        return Welcome(
            version=VERSION,
            node=options.name,
            epoch=options.epoch,
            pid=self.introduction.pid,
            release=__version__,
            engine_socket=self.introduction.engine_socket,
            events_url=self.introduction.events_url,
            capacity_bytes=options.capacity_bytes,
            observed=dict(self._node.intent.observed),
            labels=self.introduction.labels,
            snapshot_types=get_args(SnapshotType),
        )

    def _snapshot(self, peer: bytes, snapshot: Snapshot) -> ControlReply:
        self._pending.pop((peer, snapshot.dry_run), None)
        for name in ("store", "digest", "traceparent"):
            if len(getattr(snapshot, name)) > MAX_LABEL_CHARACTERS:
                raise ProtocolError(Code.BAD_FIELD, f"expected at most {MAX_LABEL_CHARACTERS} characters", name)
        needed = self._node.intent.needed_bodies(snapshot)
        if not needed:
            return self._apply(snapshot, {})
        now = self._clock()
        for other, waiting in list(self._pending.items()):
            if now - waiting.since > BODIES_TIMEOUT_S:
                del self._pending[other]
        if len(self._pending) >= MAX_PENDING:
            return ControlRefused("too_many", "too many snapshots wait for bodies", nonce=snapshot.nonce)
        self._pending[peer, snapshot.dry_run] = _Pending(snapshot, now, frozenset(needed))
        return NeedBodies(snapshot.nonce, needed)

    def _bodies(self, peer: bytes, message: Bodies) -> ControlReply | None:
        waiting = next(
            (
                each
                for trial in (False, True)
                if (each := self._pending.get((peer, trial))) is not None and each.snapshot.nonce == message.nonce
            ),
            None,
        )
        if waiting is None:
            return ControlRefused("unknown_body", "no snapshot waits for these bodies", nonce=message.nonce)
        for digest, body in message.bodies.items():
            if (
                digest in waiting.needed and len(body) <= MAX_BODY_BYTES
            ):  # a missing body is reported as a fault of the snapshot
                waiting.bodies[digest] = body
        if not message.last:
            return None
        del self._pending[peer, waiting.snapshot.dry_run]
        return self._apply(waiting.snapshot, waiting.bodies)

    def _apply(self, snapshot: Snapshot, bodies: dict[str, bytes]) -> ControlReply:
        if not tracing.on():
            return self._applied(snapshot, bodies)
        valid = tracing.trace_id_of(snapshot.traceparent)
        attributes: dict[str, Attribute] = {
            "larder.node": self._node.options.name,
            "larder.type": snapshot.type,
            "larder.generation": snapshot.generation,
        }
        with tracing.span(
            "snapshot.check" if snapshot.dry_run else "snapshot.apply",
            parent=snapshot.traceparent if valid else "",
            kind="server",
            attributes=attributes,
        ) as span:
            answer = self._applied(snapshot, bodies)
            if isinstance(answer, Nack):
                span.failed(f"{len(answer.errors)} faults")
            return answer

    def _applied(self, snapshot: Snapshot, bodies: dict[str, bytes]) -> ControlReply:
        now, kind, generation, intent = self._clock(), snapshot.type, snapshot.generation, self._node.intent
        if snapshot.dry_run:
            faults = intent.faults(snapshot, bodies, self._tiers)
        else:
            faults = intent.apply(snapshot, bodies, self._tiers, now)
        if faults:
            if not snapshot.dry_run:
                self._node.emit(SnapshotRefused(now, kind, generation, len(faults)))
            return Nack(kind, generation, snapshot.nonce, faults, intent.observed.get(kind))
        if not snapshot.dry_run:
            self._acknowledged(snapshot)
            self._node.emit(SnapshotApplied(now, kind, generation, snapshot.digest, snapshot.traceparent))
        return Ack(kind, generation, snapshot.nonce, snapshot.digest, self._clock() - now)

    def close(self) -> None:
        self.guard.close()
        self.socket.close()


def _nonce(message: ControlRequest) -> str:
    """Return the nonce of a message; "" for a `Hello`. Raises ProtocolError."""
    nonce = "" if isinstance(message, Hello) else message.nonce
    if len(nonce) > MAX_LABEL_CHARACTERS:
        raise ProtocolError(Code.BAD_FIELD, f"expected at most {MAX_LABEL_CHARACTERS} characters", "nonce")
    return nonce


def _swept(nonce: str, begun: SweepStart) -> Swept:
    return Swept(nonce, begun.sweep, len(begun.numbers), begun.bytes)


def _check_numbers(message: ControlRequest) -> None:
    """Check the numbers of a message that its handler does not check. Raises ProtocolError(BAD_FIELD)."""
    name = _TIMES.get(type(message), "")
    if name and not isfinite(at := getattr(message, name)):
        raise ProtocolError(Code.BAD_FIELD, f"expected Unix seconds, got {at}", name)
    name = _COUNTS.get(type(message), "")
    if name and not 0 <= (number := getattr(message, name)) <= MAX_COUNT:
        raise ProtocolError(Code.BAD_FIELD, f"expected 0 to {MAX_COUNT}, got {number}", name)
    if isinstance(message, Move) and not 0 < message.deadline_s <= MAX_MOVE_S:
        expected = f"expected more than 0 and at most {MAX_MOVE_S:g} seconds, got {message.deadline_s}"
        raise ProtocolError(Code.BAD_FIELD, expected, "deadline_s")
