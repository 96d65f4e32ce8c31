"""Decides which events are published and when: changes of the pool as they occur, and after a start all cached blocks.

A block is published when its bytes are cached on this node for every rank, pipeline stage and KV group that has a space
here, and withdrawn as soon as one of them loses it. Spaces that have attached engines count first; while a model has
none, those count that did last. The publisher remembers what it published, and compares it with the pool for each key
that changed: subscribers that count get each change once, however many ranks, engines and changes lie behind it. After
a start, and when changes were lost, subscribers get `AllBlocksCleared` and then all cached blocks, a few at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from pathlib import Path

import structlog

from dataplane.base.connection_guard import LOOK_S
from dataplane.core.blocks.blocks import Block, BlockTable
from dataplane.core.pool.changes import BlockChanges
from dataplane.core.pool.pool import Pool
from dataplane.io.loop import Loop
from dataplane.kv_events.messages import Event, EventEncoder, Format, batch, block_hash, block_hashes
from dataplane.kv_events.stream import Stream
from dataplane.kv_events.token_ids import TokenIds
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.short_chains import leading_of
from dataplane.protocol.spaces import kinds_of
from dataplane.protocol.states import State
from dataplane.protocol.stats.kv_events import KvEventStats

INTERVAL_S = 0.01
"""Time for which changes are collected into one batch."""
BEGIN_S = 1.0
"""Time that subscribers of the previous process have to connect again before the first batch."""
MAX_BLOCKS_AT_ONCE = 1024
"""Maximum number of changed blocks that are published in one interval."""
MAX_BLOCKS_PER_BATCH = 128
REVIEWED_AT_ONCE = 128
"""Maximum number of cached blocks that are reviewed in one interval: up to 12,800 a second."""
MAX_MODELS = 1024
MAX_SPACES = 1 << 17

log = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class KvEventOptions:
    layout: Format
    topics: tuple[str, ...]
    """Templates with `{model}`. Each batch is sent on every topic."""
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
        pool: Pool,
        loop: Loop,
        streams: Sequence[Stream],
        options: KvEventOptions,
        clock: Callable[[], float],
        models_file: Path,
    ) -> None:
        """`models_file` stores the models whose blocks were published, so that the next process can announce their
        removal."""
        self._pool = pool
        self._loop = loop
        self._streams = streams
        self._options = options
        self._clock = clock
        self._file = models_file
        self._encoder = EventEncoder(options.layout, options.medium)
        self._spaces: dict[int, _Space] = {}
        self._kinds: dict[str, list[list[list[int]]]] = {}
        """Kinds of engines of a model, by the numbers of their spaces."""
        self._version = pool.spaces.version
        self._published: dict[str, dict[bytes, _Space]] = {}
        """Keys that subscribers know as cached, by model."""
        self._tokens_came: dict[str, dict[bytes, None]] = {}
        """Published keys of which the tokens have become known, by model."""
        self._models = _read_models(models_file)
        self._begun: set[str] = set()
        """Models for which this process has published events."""
        self._malformed = 0
        """Number of malformed requests that are already in the node's totals."""
        self._began = self._scheduled = self._replaying = False
        self._review: Iterator[Block] | None = None
        """Cached blocks that are still to be compared with what was published."""
        self.token_ids: TokenIds | None = TokenIds(self._found) if options.token_ids else None
        self._changes = pool.changes = BlockChanges(self._wake)
        for stream in streams:
            if stream.replay is not None:
                loop.register_zmq(stream.replay, self._serve_replays)
            loop.every(LOOK_S, stream.guard)
        loop.once(BEGIN_S, self._begin)

    def stats(self) -> KvEventStats:
        malformed = sum(stream.malformed for stream in self._streams)
        self._pool.totals.malformed_messages += malformed - self._malformed
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
        self._published.clear()
        if self.token_ids is not None:
            self.token_ids.forget_all()
        for model in self._models:
            self._publish(model, [self._encoder.cleared()])
        self._begun.update(self._models)
        self._review = iter(_ancestors_first(self._pool.table))

    def _flush(self) -> None:
        """Publish what changed since the last call, and review some of the cached blocks."""
        self._scheduled = False
        if self._changes.lost_blocks:
            lost = self._changes.clear()
            log.warning("kv_events.changes_lost", blocks=lost, effect="all cached blocks are published again")
            for stream in self._streams:
                stream.skip(lost)
            self._resend()
        self._notice_spaces()
        came, self._tokens_came = self._tokens_came, {}
        changed = {model: dict(keys) for model, keys in came.items()}
        reviewed: list[Block] = []
        if self._review is not None:
            reviewed += islice(self._review, REVIEWED_AT_ONCE)
            if len(reviewed) < REVIEWED_AT_ONCE:
                self._review = None
        for block in chain(self._changes.take(MAX_BLOCKS_AT_ONCE), reviewed):
            space = self._space(block.space)
            if space is not None:
                changed.setdefault(space.model, {})[block.key] = None
        batches: dict[str, _Batch] = {}
        for model, keys in changed.items():
            self._compare(batches, model, keys, came.get(model, ()))
        for model, waiting in batches.items():
            self._publish(model, waiting.events)
        if self._changes.blocks or self._review is not None:
            self._wake()

    def _notice_spaces(self) -> None:
        """Review all cached blocks if a model has other kinds of engines than when its blocks were compared last: a
        chunk may be whole no longer, or at last."""
        spaces = self._pool.spaces
        if spaces.version == self._version:
            return
        self._version = spaces.version
        for model, kinds in list(self._kinds.items()):
            if not self._has_no_engine(model, kinds) and kinds != self._kinds_of(model):
                del self._kinds[model]
                self._review = iter(_ancestors_first(self._pool.table))

    def _has_no_engine(self, model: str, kinds: list[list[list[int]]]) -> bool:
        """Return whether a model has all of these spaces still, and no engine: its only one may be about to return."""
        spaces = self._pool.spaces
        here = spaces.of_model(model)
        needed = {number for kind in kinds for place in kind for number in place}
        return needed.issubset(here) and not any(number in spaces.engines for number in here)

    def _found(self, key: bytes, models: Iterable[str]) -> None:
        """Publish a block again that was published without its tokens, which have become known."""
        for model in models:
            self._tokens_came.setdefault(model, {})[key] = None
        self._wake()

    # ---- what

    def _compare(
        self, batches: dict[str, _Batch], model: str, keys: Collection[bytes], came: Collection[bytes]
    ) -> None:
        """Publish for which of these keys the pool differs from what was published. Blocks in `came` are withdrawn and
        published again."""
        published = self._published.setdefault(model, {})
        whole = self._whole(model, keys)
        gone = [key for key in keys if key in published and (key not in whole or key in came)]
        self._remove(batches, model, published, gone)
        self._store(batches, published, [whole[key] for key in keys if key in whole and key not in published])
        if not published:
            del self._published[model]

    def _store(self, batches: dict[str, _Batch], published: dict[bytes, _Space], blocks: Sequence[Block]) -> None:
        run: _Run | None = None
        for block in blocks:
            space = self._space(block.space)
            if space is None:
                continue
            published[block.key] = space
            tokens = b"" if self.token_ids is None else self.token_ids.get(block.key)
            if self.token_ids is not None and not tokens:
                self.token_ids.want(block.key, space.model)
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

    def _remove(
        self, batches: dict[str, _Batch], model: str, published: dict[bytes, _Space], keys: Sequence[bytes]
    ) -> None:
        if self.token_ids is not None:
            for key in keys:
                self.token_ids.forget(key, model)
        for parts, same in groupby(keys, key=lambda key: published[key].parts):
            hashes = block_hashes(list(same), parts)
            for at in range(0, len(hashes), MAX_BLOCKS_PER_BATCH):
                part = hashes[at : at + MAX_BLOCKS_PER_BATCH]
                self._add(batches, model, self._encoder.removed(part), len(part))
        for key in keys:
            del published[key]

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
            topic = template.replace("{model}", model).encode()
            for stream in self._streams:
                stream.send(topic, head, len(events))

    def _whole(self, model: str, keys: Iterable[bytes]) -> dict[bytes, Block]:
        """Return one cached block of each of these keys that all ranks, stages and groups of an engine have cached."""
        kinds = self._kinds.get(model)
        if kinds is None:
            kinds = self._kinds_of(model)
            if kinds:
                self._kinds[model] = kinds
        table = self._pool.table
        whole: dict[bytes, Block] = {}
        for kind in kinds:
            left = {key: key for key in keys if key not in whole}
            first: dict[bytes, Block] = {}
            for place in kind:
                if not left:
                    break
                words = pack_keys(list(left))
                found = (zip(left, table.find(words, number), strict=True) for number in place)
                here = {key: block for key, block in chain(*found) if block is not None and _is_cached(block)}
                first = first or here
                left = {key: key for key in left if key in here}
            whole.update((key, first[key]) for key in left)
        return whole

    def _kinds_of(self, model: str) -> list[list[list[int]]]:
        spaces = self._pool.spaces
        return kinds_of({number: spaces.by_number[number] for number in spaces.of_model(model)}, spaces.engines)

    def _space(self, number: int) -> _Space | None:
        """Return the data that events of a space need; None if the space is unknown."""
        if number in self._spaces:
            return self._spaces[number]
        space = self._pool.spaces.by_number.get(number)
        if space is None:
            return None
        parts, rest = divmod(space.block_tokens, self._options.block_tokens or space.block_tokens)
        made = _Space(space.model, 1 if rest else parts, space.block_tokens if rest else space.block_tokens // parts)
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
        self._pool.changes = self._review = None
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


def _ancestors_first(table: BlockTable) -> Iterator[Block]:
    """Yield all cached blocks, each after its predecessor in the chain if that is cached."""
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
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text())
        if isinstance(found, list):
            return {model: None for model in found[:MAX_MODELS] if isinstance(model, str)}
    return {}
