"""A node that speaks the control and events protocol and keeps no bytes, with switches for what can go wrong.

Runs in the test's event loop. `restart` is another process as far as anyone can tell: new epoch, new sockets.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any, get_args

import msgspec
import zmq
import zmq.asyncio

from app.change_signal import ChangeSignal
from app.push.link import Question
from dataplane.protocol.codec import decode, encode
from dataplane.protocol.control.messages import VERSION, ControlRefused, ControlReply, ControlRequest
from dataplane.protocol.control.moves import CancelMove, Move, Moved, MoveState, ReadMove
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
from dataplane.protocol.control.prefixes import ListPrefixes, Prefix, PrefixesListed, PrefixKeys, Trace, TracePart
from dataplane.protocol.control.records import PinSpec, PolicySpec, QuotaSpec
from dataplane.protocol.control.scopes import CountBlocks, Counted, Demote, Invalidate, Swept
from dataplane.protocol.control.sessions import ActOnSession, ListSessions, SessionActed, SessionsListed
from dataplane.protocol.control.snapshots import Ack, Bodies, Fault, Nack, NeedBodies, Snapshot, SnapshotType, digest_of
from dataplane.protocol.event import name_of
from dataplane.protocol.events import Event
from dataplane.protocol.observed import Observed
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pool import PoolStats, Totals
from dataplane.protocol.tiers import TierSpec
from dataplane.protocol.usage import ReadUsage, UsageCounters, UsageRead

_requests: msgspec.msgpack.Decoder[ControlRequest] = msgspec.msgpack.Decoder(ControlRequest)
STATS_S = 0.1
DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "quotas": msgspec.msgpack.Decoder(list[QuotaSpec]),
    "pins": msgspec.msgpack.Decoder(list[PinSpec]),
    "policies": msgspec.msgpack.Decoder(list[PolicySpec]),
    "tiers": msgspec.msgpack.Decoder(list[TierSpec]),
}


class FakeNode:
    """`changed` beats after every message and switch; wait with `await node.until(lambda: …)`."""

    def __init__(self, folder: Path, name: str = "node-a") -> None:
        self.folder = folder
        self.control_url = f"ipc://{folder / 'control.sock'}"
        self.events_url = f"ipc://{folder / 'events.sock'}"
        self.name = name
        self.epoch = ""
        self.observed: dict[str, Observed] = {}
        self.quotas: list[QuotaSpec] = []
        self.pins: list[PinSpec] = []
        self.policies: list[PolicySpec] = []
        self.tiers: list[TierSpec] = []
        self.bodies: dict[str, bytes] = {}
        self.changed = ChangeSignal()
        self._waiting: dict[str, Snapshot] = {}
        self._seq = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.reset()

    def reset(self) -> None:
        """Forget the switches, the statistics and the requests of a test; what was applied stays."""
        self.snapshot_types: tuple[str, ...] = get_args(SnapshotType)
        self.received: list[Snapshot] = []
        self.requested_keys: list[str] = []
        self.described = 0
        self.swept: list[Invalidate | Demote] = []
        self.expelled: list[Expel] = []
        self.covered = (3, 12 << 10)
        """Blocks and bytes of every scope."""
        self.prefixes: list[Prefix] = []
        """With their keys, which `PrefixKeys` alone gives out."""
        self.labels: list[str] = []
        """Of prefixes whose keys were requested."""
        self.trace: list[bytes] = []
        """Parts of lines, as they are given out."""
        self.traced: list[Trace] = []
        self.used: list[UsageCounters] = []
        self.moved: list[Move] = []
        self.moves: dict[int, MoveState] = {}
        self.claimed_move: MoveState | None = None
        self.held_moves = False
        """Whether moves do not end by themselves."""
        """State that it claims of every move."""
        self.noted: list[float] = []
        self.capacity_bytes = 1 << 30
        # Switches.
        self.faults: list[Fault] = []
        self.deaf = False
        self.asks_twice = False
        """Ask for the bodies again once all have come."""
        self.unable = False
        """Refuse everything that older nodes do not know."""
        self.answers: Callable[[ControlRequest], ControlReply | None] | None = None
        """Instead of the right answer to a question."""
        self.mute = False
        self.delay_s = 0.0
        self.stats = NodeStats(
            at=0.0, node=self.name, epoch="", uptime_s=0.0, armed=False, pool=PoolStats(capacity_bytes=1 << 30),
            totals=Totals(), refused={}, tenants=[], other_tenants=None, pins=[], engines=[], observed={},
        )  # fmt: skip

    async def start(self) -> None:
        self.epoch = os.urandom(8).hex()
        self._seq = 0
        self._context = zmq.asyncio.Context()
        self._control = self._context.socket(zmq.ROUTER)
        self._events = self._context.socket(zmq.PUB)
        for socket, url in ((self._control, self.control_url), (self._events, self.events_url)):
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(url)
        self._tasks = [asyncio.create_task(self._serve()), asyncio.create_task(self._send_heartbeats())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            self._tasks = []
            self._control.close()
            self._events.close()
            self._context.term()

    async def restart(self, *, forget: bool = False) -> None:
        await self.stop()
        if forget:
            self.observed.clear()
        await self.start()

    async def until(self, holds, timeout_s: float = 60.0) -> None:
        assert await self.changed.until(holds, timeout_s), "the node never got there"

    async def publish(self, event: Event) -> None:
        self._seq += 1
        await self.publish_raw(name_of(event).encode(), pack("<Q", self._seq), encode(event))

    async def publish_raw(self, *frames: bytes) -> None:
        await self._events.send_multipart(list(frames))

    def skip_events(self, count: int) -> None:
        self._seq += count

    def drift(self, kind: str) -> None:
        """Lose what was applied, as a bug or a hand on the node would."""
        observed = self.observed[kind]
        self.observed[kind] = Observed(observed.generation, digest_of(b"something else"), observed.store)

    def stats_now(self) -> NodeStats:
        observed = dict(self.observed)
        return msgspec.structs.replace(
            self.stats, at=time.time(), epoch=self.epoch, armed="quotas" in observed, observed=observed
        )

    async def _send_heartbeats(self) -> None:
        while True:
            if not self.mute:
                await self.publish(self.stats_now())
            await asyncio.sleep(STATS_S)

    async def _serve(self) -> None:
        while True:
            peer, payload = await self._control.recv_multipart()
            message = decode(_requests, payload)
            reply = None if self.deaf else await self._answer(message)
            if reply is not None:
                await self._control.send_multipart([peer, encode(reply)])
            self.changed.notify()

    async def _answer(self, message: ControlRequest) -> ControlReply | None:
        if isinstance(message, Hello):
            return Welcome(
                VERSION,
                self.name,
                self.epoch,
                os.getpid(),
                "0",
                "/nowhere",
                self.events_url,
                self.capacity_bytes,
                dict(self.observed),
                snapshot_types=self.snapshot_types,
            )
        if isinstance(message, DescribeNode):
            self.described += 1
            return Description(message.nonce, self._seq, self.stats_now(), dict(self.observed))
        if isinstance(message, Bodies):
            self.bodies.update(message.bodies)
            if message.last and self.asks_twice:
                return NeedBodies(message.nonce, list(message.bodies))
            return self._apply(self._waiting.pop(message.nonce)) if message.last else None
        if not isinstance(message, Snapshot):
            return self._operate(message)
        self.received.append(message)
        await asyncio.sleep(self.delay_s)
        missing = [d for d in self._named(message) if d not in self.bodies]
        if missing:
            self._waiting[message.nonce] = message
            self.requested_keys += missing
            return NeedBodies(message.nonce, missing)
        return self._apply(message)

    def _operate(self, message: Question) -> ControlReply | None:
        if self.unable:
            return ControlRefused("unsupported", "not known here", nonce=message.nonce)
        if self.answers is not None:
            return self.answers(message)
        if isinstance(message, Drain):
            return NodeDrained(message.nonce, message.on)
        if isinstance(message, Expel):
            self.expelled.append(message)
            if message.client != 7:
                return ControlRefused("unknown_engine", "no engine", "client", message.nonce)
            if message.on and not (message.force or message.kill):
                return ControlRefused(
                    "holds_leases", "process 4711 holds 3 blocks: with force it may", "force", message.nonce
                )
            dropped = message.force or not message.on
            return Expelled(message.nonce, 4711, [7, 8], 3, dropped, message.kill, 4096, [4711, 4712])
        if isinstance(message, Invalidate | Demote):
            self.swept.append(message)
            return Swept(message.nonce, len(self.swept), *self.covered)
        if isinstance(message, (Move, ReadMove, CancelMove)) and self.claimed_move is not None:
            return Moved(message.nonce, self.claimed_move)
        if isinstance(message, Move):
            if message.tier not in ("disk", "s3", "memory"):
                return ControlRefused("unknown_tier", "no tier 'tape' is open", "tier", message.nonce)
            self.moved.append(message)
            blocks, nbytes = self.covered
            state = MoveState(len(self.moved), message.tier, blocks or 0, nbytes or 0, dry_run=message.dry_run)
            state.tenant = message.scope.tenant
            self.moves[state.number] = state
            return Moved(message.nonce, state)
        if isinstance(message, (ReadMove, CancelMove)) and message.number not in self.moves:
            return ControlRefused("unknown_move", "no such move", "number", message.nonce)
        if isinstance(message, CancelMove):
            state = self.moves[message.number]
            if state.ended_at is None:
                state.cancelled, state.ended_at = True, time.time()
                state.refused = {"cancelled": state.blocks}
            return Moved(message.nonce, state)
        if isinstance(message, ReadMove):
            state = self.moves[message.number]
            if self.held_moves:
                return Moved(message.nonce, state)
            state.ended_at = time.time()
            if not state.dry_run:
                state.moved_blocks, state.moved_bytes = state.blocks - 1, state.bytes - 4096
                state.refused = {"limit": 1}
            return Moved(message.nonce, state)
        if isinstance(message, CountBlocks):
            return Counted(message.nonce, *self.covered)
        if isinstance(message, ListPrefixes):
            listed = [p for p in self.prefixes if message.tenant in (None, p.tenant)][: message.limit]
            return PrefixesListed(message.nonce, [msgspec.structs.replace(p, keys=b"") for p in listed])
        if isinstance(message, PrefixKeys):
            self.labels.append(message.label)
            known = [p for p in self.prefixes if p.label == message.label]
            if not known:
                return ControlRefused("unknown_prefix", f"no prefix {message.label!r}", "label", message.nonce)
            return PrefixesListed(message.nonce, known)
        if isinstance(message, ReadUsage):
            self.noted.append(message.noted)
            return UsageRead(message.nonce, time.time(), list(self.used), 0)
        if isinstance(message, Trace):
            self.traced.append(message)
            after = message.after + 1
            lines = self.trace[message.after] if self.trace else b""
            return TracePart(message.nonce, lines, after if after < len(self.trace) else 0)
        if isinstance(message, ListSessions):
            return SessionsListed(message.nonce, [], 0)
        if isinstance(message, ActOnSession):
            return SessionActed(message.nonce, found=False)
        if not isinstance(message, Resize):
            return ControlRefused("unsupported", "a node without bytes", nonce=message.nonce)
        if message.capacity_bytes < self.capacity_bytes:
            return ControlRefused("bad_field", "the pool cannot shrink", "capacity_bytes", message.nonce)
        self.capacity_bytes = message.capacity_bytes
        return Resized(message.nonce, self.capacity_bytes)

    def _named(self, snapshot: Snapshot) -> list[str]:
        if snapshot.type != "pins":
            return []
        return sorted({pin.keys_digest for pin in DECODERS["pins"].decode(snapshot.body)})

    def _apply(self, snapshot: Snapshot) -> Ack | Nack:
        observed = self.observed.get(snapshot.type)
        faults = list(self.faults)
        if observed is not None and observed.store == snapshot.store and observed.generation > snapshot.generation:
            faults.append(Fault("generation", "stale_generation", f"{observed.generation} is applied"))
        if digest_of(snapshot.body) != snapshot.digest:
            faults.append(Fault("digest", "bad_digest", "the body is another one"))
        if faults:
            return Nack(snapshot.type, snapshot.generation, snapshot.nonce, faults, observed)
        if snapshot.dry_run:
            return Ack(snapshot.type, snapshot.generation, snapshot.nonce, snapshot.digest, 0.0)
        setattr(self, snapshot.type, DECODERS[snapshot.type].decode(snapshot.body))
        self.observed[snapshot.type] = Observed(snapshot.generation, snapshot.digest, snapshot.store)
        return Ack(snapshot.type, snapshot.generation, snapshot.nonce, snapshot.digest, 0.0)
