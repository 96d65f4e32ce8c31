"""Decides which events are published and when: changes of the pool as they occur, and after a start all cached blocks.

A block is published when its bytes are cached on this node for every rank and pipeline stage that has a space here, and
withdrawn as soon as one of them loses it. Only KV group 0 is published. After a start, and when changes were lost,
subscribers get `AllBlocksCleared` and then all cached blocks, a few at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import structlog

from dataplane.core.blocks.blocks import Block, BlockTable
from dataplane.core.node import Node
from dataplane.core.pool.changes import BlockChanges
from dataplane.io.loop import Loop
from dataplane.kv_events.messages import Event, EventEncoder, Format, batch, block_hash, block_hashes
from dataplane.kv_events.stream import Stream
from dataplane.kv_events.token_ids import TokenIds
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.short_chains import leading_of
from dataplane.protocol.spaces import leading
from dataplane.protocol.states import State
from dataplane.protocol.stats.kv_events import KvEventStats

INTERVAL_S = 0.01
"""Time for which changes are collected into one batch."""
BEGIN_S = 1.0
"""Time that subscribers of the previous process have to connect again before the first batch."""
MAX_BLOCKS_AT_ONCE = 1024
"""Maximum number of changed blocks that are published in one interval."""
MAX_BLOCKS_PER_BATCH = 128
RESENT_AT_ONCE = 128
"""Maximum number of blocks that are published again in one interval: up to 12,800 a second."""
MAX_MODELS = 1024
MAX_SPACES = 1 << 17

log = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class KvEventOptions:
    layout: Format
    topics: tuple[str, ...]
    """Templates with `{node}` and `{model}`. Each batch is sent on every topic."""
    medium: str
    token_ids: bool
    block_tokens: int
    """Tokens per published block; 0, or a number that does not divide a chunk: a block is a chunk."""


@dataclass(slots=True)
class _Space:
    """Data of a space that its events need; kept longer than the space."""

    model: str
    parts: int
    block_tokens: int


@dataclass(slots=True)
class _Run:
    """Stored blocks that follow each other in a chain and become one event."""

    space: _Space
    first: Block
    keys: list[bytes]
    tokens: list[bytes]


@dataclass(slots=True)
class _Batch:
    """Events of one model."""

    events: list[Event] = field(default_factory=list)
    blocks: int = 0


class KvEventPublisher:
    """Publishes the changes of a node's pool to streams. Only the thread of the data plane calls it."""

    def __init__(
        self,
        node: Node,
        loop: Loop,
        streams: Sequence[Stream],
        options: KvEventOptions,
        clock: Callable[[], float],
        models_file: Path,
    ) -> None:
        """`models_file` stores the models whose blocks were published, so that the next process can announce their
        removal."""
        self._node = node
        self._loop = loop
        self._streams = streams
        self._options = options
        self._clock = clock
        self._file = models_file
        self._encoder = EventEncoder(options.layout, options.medium)
        self._spaces: dict[int, _Space | None] = {}
        self._models = _read_models(models_file)
        self._begun: set[str] = set()
        """Models for which this process has published events."""
        self._malformed = 0
        """Number of malformed requests that are already in the node's totals."""
        self._missed_in = 0
        """Space in which a block of another rank was last missing. It is checked first."""
        self._began = self._scheduled = self._replaying = False
        self._resent: Iterator[Block] | None = None
        self.token_ids: TokenIds | None = TokenIds(self._found) if options.token_ids else None
        self._changes = node.pool.changes = BlockChanges(self._wake)
        node.kv_event_stats = self.stats
        for stream in streams:
            if stream.replay is not None:
                loop.register_zmq(stream.replay, self._serve_replays)
        loop.once(BEGIN_S, self._begin)

    def stats(self) -> KvEventStats:
        malformed = sum(stream.malformed for stream in self._streams)
        self._node.pool.totals.malformed_messages += malformed - self._malformed
        self._malformed = malformed
        return KvEventStats(
            urls=[stream.url for stream in self._streams],
            published=sum(stream.published for stream in self._streams),
            dropped=sum(stream.dropped for stream in self._streams),
            replayed=sum(stream.replayed for stream in self._streams),
            replays_abandoned=sum(stream.abandoned for stream in self._streams),
        )

    # ---- when

    def _begin(self) -> None:
        self._began = True
        self._resend()
        self._flush()

    def _wake(self) -> None:
        if self._began and not self._scheduled:
            self._scheduled = True
            self._loop.once(INTERVAL_S, self._flush)

    def _resend(self) -> None:
        """Publish that all blocks were cleared, and begin to publish the cached blocks."""
        self._changes.clear()
        for model in self._models:
            self._publish(model, [self._encoder.cleared()])
        self._begun.update(self._models)
        self._resent = iter(_ancestors_first(self._node))

    def _flush(self) -> None:
        """Publish the changes since the last call, and some of the blocks that are to be published again."""
        self._scheduled = False
        if self._changes.lost_blocks:
            lost = self._changes.clear()
            log.warning("kv_events.changes_lost", blocks=lost, effect="all cached blocks are published again")
            for stream in self._streams:
                stream.skip(lost)
            self._resend()
        batches: dict[str, _Batch] = {}
        for stored, blocks in self._changes.take(MAX_BLOCKS_AT_ONCE):
            if stored:
                self._store(batches, blocks)
            else:
                self._remove(batches, blocks)
        if self._resent is not None:
            again = [block for _, block in zip(range(RESENT_AT_ONCE), self._resent, strict=False)]
            self._store(batches, [block for block in again if _is_cached(block)])
            if len(again) < RESENT_AT_ONCE:
                self._resent = None
        for model, waiting in batches.items():
            self._publish(model, waiting.events)
        if self._changes.blocks or self._resent is not None:
            self._wake()

    def _found(self, block: Block) -> None:
        """Publish a block again whose tokens were unknown when it was published."""
        if _is_cached(block):
            self._changes.stored([block])

    # ---- what

    def _store(self, batches: dict[str, _Batch], blocks: Sequence[Block]) -> None:
        run: _Run | None = None
        for block, space in self._publishable(blocks):
            tokens = b"" if self.token_ids is None else self.token_ids.get(block.key)
            if self.token_ids is not None and not tokens:
                self.token_ids.want(block.key, block)
            if (
                run is not None
                and run.space is space
                and run.keys[-1] == block.parent
                and bool(run.tokens[0]) == bool(tokens)
                and len(run.tokens) < MAX_BLOCKS_PER_BATCH
            ):
                run.keys.append(block.key)
                run.tokens.append(tokens)
                continue
            self._end(batches, run)
            run = _Run(space, block, [block.key], [tokens])
        self._end(batches, run)

    def _end(self, batches: dict[str, _Batch], run: _Run | None) -> None:
        if run is None:
            return
        first = run.first
        tokens = b"".join(run.tokens)
        event = self._encoder.stored(
            block_hashes(run.keys, run.space.parts),
            block_hash(first.parent) if first.parent else None,
            tokens,
            run.space.block_tokens,
            first.tenant.salt if tokens and not first.parent else "",
        )
        self._add(batches, run.space.model, event, len(run.tokens))

    def _remove(self, batches: dict[str, _Batch], blocks: Sequence[Block]) -> None:
        if self.token_ids is not None:
            for block in blocks:
                self.token_ids.forget(block.key)
        removed: dict[str, dict[int, None]] = {}
        """Hashes by model, each once, although every space of a model had the block."""
        for number, own in groupby(blocks, key=lambda block: block.space):
            space = self._space(number)
            if space is not None:
                hashes = block_hashes([block.key for block in own], space.parts)
                removed.setdefault(space.model, {}).update(dict.fromkeys(hashes))
        for model, unique in removed.items():
            hashes = list(unique)
            for at in range(0, len(hashes), MAX_BLOCKS_PER_BATCH):
                part = hashes[at : at + MAX_BLOCKS_PER_BATCH]
                self._add(batches, model, self._encoder.removed(part), len(part))

    def _add(self, batches: dict[str, _Batch], model: str, event: Event, blocks: int) -> None:
        waiting = batches.setdefault(model, _Batch())
        if model not in self._begun:
            self._begun.add(model)
            self._remember(model)
            waiting.events.append(self._encoder.cleared())
        waiting.events.append(event)
        waiting.blocks += blocks
        if waiting.blocks >= MAX_BLOCKS_PER_BATCH:
            self._publish(model, batches.pop(model).events)

    def _publish(self, model: str, events: Sequence[Event]) -> None:
        head = batch(self._clock(), events)
        for template in self._options.topics:
            topic = template.replace("{node}", self._node.options.name).replace("{model}", model).encode()
            for stream in self._streams:
                stream.send(topic, head, len(events))

    def _publishable(self, blocks: Sequence[Block]) -> Iterator[tuple[Block, _Space]]:
        """Yield, in order, the blocks that are cached for every rank and stage with a space on this node."""
        for number, own in groupby(blocks, key=lambda block: block.space):
            space = self._space(number)
            if space is None:
                continue
            for block in self._everywhere(number, list(own)):
                yield block, space

    def _everywhere(self, number: int, blocks: Sequence[Block]) -> Sequence[Block]:
        pool = self._node.pool
        space = pool.spaces.by_number.get(number)
        if space is None:
            return ()  # the space is gone, and its blocks with it
        if space.world_size == 1 and not space.pipeline_stage and len(pool.spaces.of_model(space.model)) == 1:
            return blocks
        same = leading(space)
        others = [
            each
            for each in pool.spaces.of_model(space.model)
            if each != number and leading(other := pool.spaces.by_number[each]) == same and not other.kv_group
        ]
        others.sort(key=lambda each: each != self._missed_in)
        for each in others:
            if not blocks:
                break
            found = pool.table.find(pack_keys([block.key for block in blocks]), each)
            here = [block for block, other in zip(blocks, found, strict=True) if other and _is_cached(other)]
            if len(here) < len(blocks):
                self._missed_in = each
            blocks = here
        return [block for block in blocks if _is_cached(block)] if others else blocks

    def _space(self, number: int) -> _Space | None:
        """Return the data that events of a space need; None if the space is not published or unknown."""
        if number in self._spaces:
            return self._spaces[number]
        space = self._node.pool.spaces.by_number.get(number)
        if space is None:
            return None
        parts, rest = divmod(space.block_tokens, self._options.block_tokens or space.block_tokens)
        made = None
        if not space.kv_group:
            made = _Space(
                space.model, 1 if rest else parts, space.block_tokens if rest else space.block_tokens // parts
            )
        while len(self._spaces) >= MAX_SPACES:
            del self._spaces[next(iter(self._spaces))]
        self._spaces[number] = made
        return made

    def _remember(self, model: str) -> None:
        if model in self._models:
            return
        self._models[model] = None
        while len(self._models) > MAX_MODELS:
            del self._models[next(iter(self._models))]
        new = self._file.with_suffix(".new")
        try:
            new.write_text(json.dumps(list(self._models)))
            new.replace(self._file)
        except OSError as error:
            log.warning("kv_events.models_not_saved", error=error.strerror)

    # ---- replays

    def _serve_replays(self) -> bool:
        """Serve the replay sockets; a timer serves the remaining requests."""
        more = [stream.receive() for stream in self._streams if stream.replay is not None]
        if any(more) and not self._replaying:
            self._replaying = True
            self._loop.once(0.0, self._replay)
        return False

    def _replay(self) -> None:
        more = [stream.step() for stream in self._streams if stream.replay is not None]
        self._replaying = any(more)
        if self._replaying:
            self._loop.once(INTERVAL_S, self._replay)

    def close(self, *, released: bool) -> None:
        """Publish the remaining changes. `released` says whether the cache ends with this process."""
        self._node.pool.changes = self._resent = None
        if self._began:
            while self._changes.blocks:
                self._flush()
            if released:
                for model in self._begun:
                    self._publish(model, [self._encoder.cleared()])
        for stream in self._streams:
            stream.close()


def _is_cached(block: Block) -> bool:
    return block.entry is not None and block.state in (State.READY, State.EVICTING)


def _ancestors_first(node: Node) -> Iterator[Block]:
    """Yield all cached blocks, each after its predecessor in the chain if that is cached."""
    table = node.pool.table
    seen: set[int] = set()
    for number in list(table.blocks):
        line: list[Block] = []
        block = table.blocks.get(number)
        while block is not None and block.number not in seen:
            seen.add(block.number)
            line.append(block)
            before = block.before
            if block.parent and (before is None or before.entry is None):
                before = block.before = _find(table, block.parent, block.space)
            block = before
        yield from reversed(line)


def _find(table: BlockTable, key: bytes, space: int) -> Block | None:
    """Return the cached block of a key. Every block is looked up after a restart, and numpy calls would dominate the
    time."""
    words = pack_keys([key])
    found = leading_of(table.memory, words, space)
    if found is None:  # an invalidation is pending
        return table.find(words, space)[0]
    return table.blocks.get(found.numbers[0]) if found.numbers else None


def _read_models(path: Path) -> dict[str, None]:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        if isinstance(found, list):
            return {model: None for model in found[:MAX_MODELS] if isinstance(model, str)}
    return {}
