"""The gateway's socket: requests of LMCache clients in, one answer for each out. Nothing a peer sends raises past it.

The socket is open to everybody who reaches it; the wire knows no authentication.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.events import GatewayStats
from dataplane.protocol.keys import TokenError
from dataplane.transport.copying import Copying
from dataplane.transport.devices import Devices
from dataplane.transport.lmcache.cache import Cache, Pool
from dataplane.transport.lmcache.chains import Chain, Chains
from dataplane.transport.lmcache.connections import Connection, Connections
from dataplane.transport.lmcache.counters import UNKNOWN, Counters
from dataplane.transport.lmcache.digests import Digests
from dataplane.transport.lmcache.failures import ANSWERS, NOT_COPIED, Failed, Reason
from dataplane.transport.lmcache.instances import Instances, Patience
from dataplane.transport.lmcache.messages import SIGNATURES, BadArguments, Key
from dataplane.transport.lmcache.openings import Openings
from dataplane.transport.lmcache.operations import Operations
from dataplane.transport.lmcache.processes import Watch
from dataplane.transport.lmcache.registrations import Registrations
from dataplane.transport.lmcache.report import gateway_stats
from dataplane.transport.lmcache.requests import LATER, Asked, Result, as_failed
from dataplane.transport.lmcache.sessions import Sessions
from dataplane.transport.lmcache.sockets import Inherited, Keeper
from dataplane.transport.lmcache.unanswered import Head, Unanswered
from dataplane.transport.lmcache.wire import (
    DIALECTS,
    Request,
    introduced_by,
    number_or_name,
    split,
)
from dataplane.transport.loop import Loop
from dataplane.transport.replicas import ReplicaCopies

TICK_S = 1.0
STRANGERS_S = 15.0
"""For which what schedulers held is held on after a restart: until their workers have it."""
SETTLE_BLOCKS = 32
"""Used ones of which note is taken between two requests. At a tick of the node there would be hundreds, and one request
in a hundred would wait for them."""

log = structlog.stdlib.get_logger()


class LMCacheServer:
    """Serves LMCache clients on one TCP port."""

    def __init__(
        self,
        loop: Loop,
        url: str,
        cache: Cache,
        pool: Pool,
        memory: int,
        folder: Path,
        clock: Callable[[], float],
        *,
        allow_clear: bool,
        patience: Patience,
        devices: Devices,
        keeper: Keeper | None = None,
        inherited: Sequence[Inherited] = (),
        replicas: ReplicaCopies | None = None,
    ) -> None:
        """`memory` is the identity of the core's memory; `folder` keeps registrations; `keeper` and `inherited` are as
        of `Connections`. Raises OSError when the port cannot be had."""
        self._clock = clock
        self._loop = loop
        self._cache = cache
        self._settling = False
        self._pool = pool
        self.counters = Counters()
        self.connections = Connections(loop, url, self._said, self._closed, keeper, inherited)
        self.url = self.connections.url
        self._unanswered = Unanswered(folder)
        self.chains = Chains()
        self.sessions = Sessions(cache.let_go)
        self._watch = Watch(loop)
        self._copying = Copying(loop)
        self.instances = Instances(
            cache,
            memory,
            pool.identity,
            Registrations(folder),
            self._watch,
            clock,
            patience,
            devices,
            Openings(self._copying, devices),
        )
        self._operations = Operations(
            cache,
            pool,
            self.instances,
            self.sessions,
            self.chains,
            self._copying,
            self.counters.moved,
            clock,
            self._count_failure,
            allow_clear=allow_clear,
            replicas=replicas,
        )
        self.digests = Digests(self.instances, self._copying)
        self._strangers = {engine.client for engine in cache.lost("lmcache")}
        self._begun_at = clock()
        self.instances.restore(self._begun_at)
        self._strangers -= {instance.client for instance in self.instances}
        try:
            self._operations.lookups.attach_common(self._begun_at)
        except ProtocolError:
            # Those that nobody knows the process of are counted together, and restarts left too many.
            self._end_strangers(self._begun_at)
            try:
                self._operations.lookups.attach_common(self._begun_at)
            except ProtocolError as error:  # the node is draining, or full
                log.warning("lmcache.no_common_engine", reason=error.message)
        self._answer_left()
        loop.every(TICK_S, self.tick)

    # ---- requests

    def _said(self, peer: Connection, frames: list[bytes]) -> None:
        """Answer a message, at once or later."""
        began = time.perf_counter()
        request = split(frames)
        if request is None:
            return
        now = self._clock()
        operation, arguments, same, wrong = self._understood(request, peer)
        if operation is None:
            self.counters.of(UNKNOWN).requests += 1
            self._fail(
                UNKNOWN, Failed(Reason.UNKNOWN_OPERATION, f"operation {request.operation[:32]!r}"), now
            )
            peer.answer(request.answer(None))
            return
        tally = self.counters.of(operation)
        tally.requests += 1
        if wrong is not None:
            result: Result = self._fail(operation, Failed(Reason.BAD_ARGUMENTS, wrong), now)
        else:
            asked = Asked(peer, operation, now, same, request, began, self._answer_later)
            result = self._called(asked, arguments)
            if self._cache.unsettled >= SETTLE_BLOCKS and not self._settling:
                self._settling = True
                self._loop.once(0.0, self._settle)  # when what was answered is sent
        if result is LATER:
            request.arguments.clear()  # megabytes, which nobody needs while the copy waits
            if not asked.answered:
                asked.slot = self._unanswered.begin(
                    Head(peer.number, request.uid, request.operation, ANSWERS.get(operation) is not None)
                )
        else:
            peer.answer(request.answer(result))
            tally.took(time.perf_counter() - began)

    def _called(self, asked: Asked, arguments: list[Any]) -> Result:
        """The result of an operation, or its failure answer. Raises nothing."""
        try:
            return self._operations.methods[asked.operation](asked, *arguments)
        except (Failed, ProtocolError) as error:
            return self._fail(asked.operation, as_failed(error), asked.now)
        except TokenError as error:
            return self._fail(asked.operation, Failed(Reason.BAD_ARGUMENTS, str(error)), asked.now)
        except Exception as error:  # whatever it is: the client must not wait minutes for it
            failed = Failed(Reason.INTERNAL, f"{type(error).__name__}: {error}")
            if not self.counters.of(asked.operation).failures[
                Reason.INTERNAL
            ]:  # the first time, with its trace
                log.exception("lmcache.internal", operation=asked.operation)
            return self._fail(asked.operation, failed, asked.now)

    def _understood(
        self, request: Request, peer: Connection
    ) -> tuple[str | None, list[Any], Chain | None, str | None]:
        """The operation (None: there is no such one), its arguments, the tokens of its key where they were left out,
        and what is wrong."""
        said = number_or_name(request.operation)
        if said is None:
            return None, [], None, None
        if isinstance(said, str):
            if said not in SIGNATURES:
                return None, [], None, None
            return said, *self._decoded(said, request)
        if not peer.introduced:
            dialect = introduced_by(said, len(request.arguments))
            if dialect is not None:
                peer.dialect, peer.introduced = dialect, True
        operation = peer.dialect.operations.get(said)
        understood = (operation, *self._decoded(operation, request)) if operation else (None, [], None, None)
        if peer.introduced or (operation and understood[3] is None):
            return understood
        # Requests of a client that spoke with the data plane before this one: their form tells what they are.
        for dialect in DIALECTS:
            other = dialect.operations.get(said)
            if dialect is not peer.dialect and other:
                decoded = self._decoded(other, request)
                if decoded[2] is None:
                    peer.dialect = dialect
                    return other, *decoded
        return understood

    def _decoded(self, operation: str, request: Request) -> tuple[list[Any], Chain | None, str | None]:
        frames = request.arguments
        signature = SIGNATURES[operation]
        same = None
        if frames and signature.has_key:
            first, same = self.chains.shortened(frames[0])
            frames = [first, *frames[1:]]
        try:
            arguments = signature.decode(frames)
        except BadArguments as error:
            return [], None, str(error)
        if same is not None and not _left_out(arguments[0]):
            same = None
        return arguments, same, None

    def _settle(self) -> None:
        self._settling = False
        self._cache.settle(self._clock())

    # ---- answers

    def _fail(self, operation: str, failed: Failed, now: float) -> bytes | None:
        self.counters.failed(operation, failed.reason, str(failed), now)
        return ANSWERS.get(operation)

    def _count_failure(self, operation: str, failed: Failed) -> None:
        self.counters.failed(operation, failed.reason, str(failed), self._clock())

    def _answer_later(self, asked: Asked, result: bytes | None) -> None:
        peer, asked.answered = asked.peer, True
        if peer.open:
            peer.answer(asked.request.answer(result))
            self.connections.flush(peer)
        else:
            self.counters.unanswered += 1
        self._unanswered.end(asked.slot)
        self.counters.of(asked.operation).took(time.perf_counter() - asked.began)

    def _answer_left(self) -> None:
        """Copies of the data plane before this one ended with it: who waits for one is told so."""
        for head in self._unanswered.left:
            peer = self.connections.numbered(head.connection)
            if peer is not None:
                log.warning("lmcache.copy_ended", reason="the data plane before was killed amid it")
                peer.answer([head.uid, head.operation, *([NOT_COPIED] if head.copied else [])])
                self.connections.flush(peer)
        self._unanswered.settled()

    def stats(self, now: float) -> GatewayStats:
        """For people: what it is doing, and what it did."""
        return gateway_stats(
            self.url, self._pool, len(self.connections), self.sessions, self.instances, self.counters, now
        )

    # ---- connections and time

    def _closed(self, connection: Connection) -> None:
        now = self._clock()
        self.sessions.end_scheduler(connection.identity)
        if connection.client:
            self._cache.goodbye(connection.client, now)
        self.instances.disconnected(connection.identity, now)

    def tick(self) -> None:
        """What need not happen with every request. Called every second."""
        now = self._clock()
        self.connections.tick()
        self.sessions.expire(now)
        self.instances.reap(now)
        if self._strangers and now - self._begun_at > STRANGERS_S:
            self._end_strangers(now)

    def _end_strangers(self, now: float) -> None:
        """Forget the schedulers of the data plane before this one, which held for workers that hold for themselves by
        now."""
        for client in self._strangers:
            engine = self._cache.engines.get(client)
            if engine is not None and not engine.expired:  # who was writing may be writing still
                self._cache.goodbye(client, now)
        self._strangers.clear()

    def close(self) -> None:
        """Stop serving. Registrations stay: the next data plane goes on with them."""
        self._copying.close()
        self.connections.close()
        self._watch.close()
        self.instances.close()
        self._unanswered.close()


def _left_out(key: Key) -> bool:
    return bytes(key.token_ids) == b"\x90"
