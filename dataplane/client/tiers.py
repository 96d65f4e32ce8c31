"""The client's view of tiers behind memory: it maps the tier directory, and asks for blocks to be loaded.

A look-up needs no message. The client asks for the directory once in each attachment. Until the directory has arrived,
or if the data plane has no tiers, look-ups find nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dataplane.client import checks
from dataplane.client.link import EngineLink
from dataplane.client.memory import SharedMapping
from dataplane.protocol import engine as wire
from dataplane.protocol.layout import I64, U64, LayoutError, Mask, leading, longest_prefix
from dataplane.protocol.tier_directory import DirectoryEntries, TierDirectory, space_word


class TierHits(NamedTuple):
    """What a look-up in memory and tiers found."""

    ready: int
    """Leading blocks that are in memory now."""
    coming: int
    """Blocks behind them that tiers hold. They must be asked for with `Client.prefetch`."""
    estimate_s: float
    """About how many seconds it takes until all of them are in memory; 0 if none is to come."""
    unknown: int = 0
    """Blocks behind those that tiers shared with other nodes may hold. `Client.prefetch` asks; a later look-up knows
    more."""
    writing: int = 0
    """Blocks behind `ready` that engines are writing now, or that follow such a block. They are in memory when their
    engines commit them, and missing if an engine ends before that."""
    sources: bytes = b""
    """Where each of the `coming` blocks is, as a position in `dataplane.protocol.misses.SOURCES`."""


class ClientTiers:
    """The tiers of the data plane that a client is attached to. The caller holds the client's lock."""

    def __init__(self, link: EngineLink, requests: Sequence[wire.SpaceRequest]) -> None:
        self._link = link
        self._words = [space_word(request.space.identity()) for request in requests]
        self._tails = [request.space.tail_blocks for request in requests]
        self._directory: TierDirectory | None = None
        self._attachment = 0
        """The attachment that the directory was asked for in."""
        self._request = 0
        """Number of the request for the directory; 0 if it was not sent."""

    def look(self, words: U64, ready: Sequence[Mask], hits: int, writing: int) -> TierHits:
        """Return what tiers hold, in every space, of a chain of which `ready` has the blocks in memory of each space,
        and of which every space can serve the first `hits` blocks from memory. Of blocks that spaces have in several
        places, the farthest one counts.

        Shared tiers are not asked for what they may hold in spaces with `tail_blocks`.
        """
        end = len(words)
        found = TierHits(hits, 0, 0.0, writing=writing)
        directory = self._current() if hits < end else None
        if directory is None or not directory.serving():
            return found
        possible = len(words) if directory.shared() and not any(self._tails) else 0
        spaces = list(zip(self._words, self._tails, ready, strict=True))
        parts: list[tuple[I64, DirectoryEntries]] = []
        for word, tail, flags in spaces:
            if tail:
                continue
            at = leading(flags)
            part = directory.leading(words[at:end], word)
            end = min(end, at + len(part.tiers))
            if end < possible and directory.is_missing(words[end:], word):
                possible = end
            parts.append((np.arange(at, at + len(part.tiers)), part))
        tail_parts: list[tuple[int, Mask, DirectoryEntries]] = []
        for word, tail, flags in spaces:
            if tail:
                tail_parts.append((tail, flags[:end], directory.in_service(words[:end], word)))
        if tail_parts:
            held = [flags | (part.tiers != 0) for _, flags, part in tail_parts]
            end = longest_prefix(held, [tail for tail, _, _ in tail_parts])
        for tail, flags, part in tail_parts:
            needed = np.flatnonzero(~flags[:end])
            needed = needed[needed >= end - tail]
            parts.append((needed, part.at(needed)))
        unknown = max(0, min(possible, len(words)) - max(end, hits))
        if end <= hits:
            return found._replace(unknown=unknown)
        seconds, sources = 0.0, np.zeros(end - hits, np.uint8)
        for positions, part in parts:
            used = positions < end
            if used.any():
                part = part.at(np.flatnonzero(used))
                seconds += directory.estimate_s(part)
                places = positions[used] - hits
                sources[places] = np.maximum(sources[places], directory.sources(part.tiers))
        return TierHits(hits, end - hits, seconds, unknown, writing, sources.tobytes())

    def prefetch(self, words: U64, spaces: Sequence[int], wait_s: float, first_space: int = 0) -> int:
        """Ask for blocks, or with `wait_s` 0 cancel that, in the spaces from `first_space` on, without waiting for an
        answer; in spaces with `tail_blocks`, only for the last blocks. Return the position of the first space whose
        request could not be sent."""
        if self._current() is None:
            return first_space
        for position in range(first_space, len(spaces)):
            keys = words[-self._tails[position] :].tobytes()
            if not self._link.post(_prefetch(spaces[position], keys, wait_s), self._take_answer):
                return position
        return len(spaces)

    def _take_answer(self, answer: wire.EngineReply, fds: list[int]) -> None:
        checks.answers(wire.Prefetching)(answer)
        self._link.emit_refused("prefetch_refused", answer)

    def map(self, timeout_s: float) -> None:
        """Ask for the directory of a new attachment, and wait for it for at most `timeout_s` seconds, so that the first
        request of an engine finds the blocks in tiers."""
        self._current()
        if self._request:
            self._link.wait_for(self._request, timeout_s)

    def release(self) -> None:
        """Release the directory of an attachment that has ended."""
        self._directory = None

    def refresh(self) -> None:
        """Ask for the directory once in each attachment, and take it when it has arrived."""
        self._current()

    def _current(self) -> TierDirectory | None:
        link = self._link
        if not link.attached or not link.terms.tiers:
            return None
        if self._attachment != link.attachments:
            self._directory = None
            self._request = link.post(lambda number: wire.MapTiers(number), self._mapped)
            if self._request:
                self._attachment = link.attachments
        link.receive()
        return self._directory

    def _mapped(self, answer: wire.EngineReply, fds: list[int]) -> None:
        checks.answers(wire.TiersMapped)(answer)
        self._link.emit_refused("map_tiers_refused", answer)
        if not isinstance(answer, wire.TiersMapped):
            return
        if len(fds) != 1:
            raise checks.fault(f"tiers_mapped: expected one file descriptor, got {len(fds)}")
        mapping = SharedMapping.map(fds[0], answer.nbytes, writable=False)
        try:
            self._directory = TierDirectory(mapping.view())
        except LayoutError as error:
            raise checks.fault(f"tiers_mapped: {error}") from None


def check_wait(wait_s: float) -> None:
    """Raise ValueError unless a prefetch may wait so long."""
    if not 0 < wait_s <= wire.MAX_WAIT_S or not math.isfinite(wait_s):
        raise ValueError(f"expected wait_s of more than 0 and at most {wire.MAX_WAIT_S:g} seconds, got {wait_s}")


def _prefetch(space: int, keys: bytes, wait_s: float) -> Callable[[int], wire.EngineRequest]:
    return lambda number: wire.Prefetch(number, space, keys, wait_s)
