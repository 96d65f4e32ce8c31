"""Reservations: room for missing blocks, invisible to readers until the commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dataplane.client import checks
from dataplane.client.attachment import AttachedMemory, Attachment
from dataplane.client.copies import Buffer, address_of, addresses, copy, copy_pieces_summed, copy_summed
from dataplane.client.link import EngineLink
from dataplane.client.memory import SharedMapping, window
from dataplane.protocol import engine as wire
from dataplane.protocol.checksums import checksum
from dataplane.protocol.codes import NOT_REFUSED, Code, ReserveOutcome, code_of
from dataplane.protocol.layout import COMMIT, I64

_WRITE = int(ReserveOutcome.WRITE)
_UNAVAILABLE = bytes((Code.UNAVAILABLE,))


@dataclass(frozen=True, slots=True, repr=False)
class CommitResult:
    """Outcome of a reservation that ended with a commit."""

    blocks: int
    """Number of published blocks, which every reader can see now."""
    code: Code | None = None
    """Reason why nothing was published; None if the commit succeeded, even if it published only a part of the keys
    because others were refused."""
    outcomes: bytes = b""
    """Outcome of `reserve` for each key: a `ReserveOutcome` or a `Code`."""

    @property
    def refused_blocks(self) -> dict[int, Code]:
        """Reason by position, for each key that was not published because it was refused.

        A key that was cached already, or that another engine was writing, was not refused. After a failed commit, the
        blocks that were to be published have its `code`.
        """
        return {at: reason for at, outcome in enumerate(self.outcomes) if (reason := self._reason(outcome)) is not None}

    @property
    def refused(self) -> dict[Code, int]:
        """Number of refused blocks by reason."""
        counts: Counter[Code] = Counter()
        for outcome in sorted(set(self.outcomes)):
            if (reason := self._reason(outcome)) is not None:
                counts[reason] += self.outcomes.count(outcome)
        return dict(counts)

    def _reason(self, outcome: int) -> Code | None:
        """Return why a block with this outcome was refused, or None if it was not."""
        if outcome == _WRITE:
            return self.code
        return None if outcome in NOT_REFUSED else code_of(outcome)

    def __repr__(self) -> str:
        code = None if self.code is None else self.code.name
        refused = ", ".join(f"{reason.name}: {number}" for reason, number in self.refused.items())
        refused_part = f", refused={{{refused}}}" if refused else ""
        return f"CommitResult(blocks={self.blocks}, code={code}{refused_part})"


class _Grant(NamedTuple):
    """What the data plane has reserved, until the reservation ends."""

    attachment: Attachment
    number: int
    mapped: dict[int, SharedMapping]


class Reservation:
    """Room for the missing blocks of a chain, with one outcome per key.

    Fill `view(i)` for each `i` in `writable`, then call `commit`. Leaving the `with` block without a commit aborts;
    readers never see any of it.
    """

    def __init__(self, keys: int, nbytes: int, link: EngineLink, memory: AttachedMemory, *, checksums: bool) -> None:
        self.nbytes = nbytes
        self._ended = False
        self._codes = _UNAVAILABLE * keys
        self._granted: _Grant | None = None
        """Another thread may end the reservation at any time, so that each call reads this once."""
        self._segments: list[int] = []
        self._offsets: list[int] = []
        self._link = link
        self._memory = memory
        self._checksums = checksums
        self._sums: dict[int, bytes] = {}
        """Checksums of the bytes that `copy_from` wrote, by position."""
        self._viewed: set[int] = set()
        """Positions whose memory the caller may write directly. Their checksums are computed at commit."""

    def grant(self, attachment: Attachment, answer: wire.Reserved) -> None:
        """Apply the data plane's answer, whose segments are mapped. Raise ProtocolError if a place is invalid."""
        segments = memoryview(answer.segments).cast("I").tolist()
        offsets = memoryview(answer.offsets).cast("Q").tolist()
        offsets_by_segment: dict[int, list[int]] = {}
        for code, number, offset in zip(answer.outcomes, segments, offsets, strict=True):
            if code == _WRITE:
                offsets_by_segment.setdefault(number, []).append(offset)
        checks.ranges(attachment.segments, offsets_by_segment, self.nbytes)
        mapped = {number: attachment.segments[number] for number in offsets_by_segment}
        for number, memory in mapped.items():
            memory.prepare(offsets_by_segment[number], self.nbytes)
        self._codes = answer.outcomes
        self._segments = segments
        self._offsets = offsets
        self._granted = _Grant(attachment, answer.reservation, mapped) if answer.reservation else None

    def refuse(self, code: Code) -> None:
        """Refuse every key."""
        self._codes = bytes((code,)) * len(self._codes)

    @property
    def outcomes(self) -> npt.NDArray[np.uint8]:
        """A `ReserveOutcome` or a `Code` for each key; read-only."""
        return np.frombuffer(self._codes, np.uint8)

    @property
    def number(self) -> int:
        """Number of the open reservation; 0 if nothing is reserved, or if it has ended."""
        granted = self._granted
        return 0 if granted is None else granted.number

    def _open(self) -> _Grant | None:
        """Return what may be touched. Always None in a forked child, where nothing is mapped."""
        granted = self._granted
        return granted if granted is not None and granted.attachment.alive else None

    def _touchable(self) -> _Grant:
        granted = self._open()
        if granted is None:
            raise ValueError("nothing is reserved, or the reservation has ended")
        return granted

    @property
    def writable(self) -> list[int]:
        """Positions to fill."""
        return [at for at, code in enumerate(self._codes) if code == _WRITE]

    @property
    def refused(self) -> dict[Code, int]:
        """Refused keys by reason."""
        return CommitResult(0, outcomes=self._codes).refused

    def array(self, i: int) -> npt.NDArray[np.uint8]:
        """Return the memory of block `i` as a writable array of `nbytes` bytes over the pool."""
        granted = self._touchable()
        if self._codes[i] != _WRITE:
            raise ValueError(f"key {i} is not to be written: outcome {self._codes[i]}")
        if self._checksums:
            self._viewed.add(range(len(self._codes))[i])
        return self._window(granted, i)

    def _window(self, granted: _Grant, i: int) -> npt.NDArray[np.uint8]:
        segment = granted.mapped[self._segments[i]]
        return window(None, segment, self._offsets[i], self.nbytes, writable=True)

    def memory(self, i: int) -> SharedMapping:
        """Return the mapping that contains block `i`, for registration with a device."""
        return self._touchable().mapped[self._segments[i]]

    def view(self, i: int) -> memoryview:
        """Return the memory of block `i` as a writable memoryview of `nbytes` bytes over the pool."""
        return self.array(i).data

    def copy_from(self, buffer: bytes | Buffer) -> int:
        """Fill every writable block from a contiguous buffer that holds the blocks of all keys, one after another.

        Much cheaper than a view per block when blocks are small. Returns the number of copied bytes: 0 if there is
        nothing to write.
        """
        if self._ended:
            raise ValueError("the reservation has ended")
        source, keep = address_of(buffer, len(self._codes) * self.nbytes, writable=False)
        granted = self._open()
        if granted is None:
            return 0
        at = np.flatnonzero(self.outcomes == _WRITE)
        segments = np.array(self._segments, np.int64)[at]
        targets = addresses(granted.mapped, segments, np.array(self._offsets, np.uint64)[at].astype(np.int64))
        if self._checksums:
            starts = at * self.nbytes
            sums = copy_summed(targets.tolist(), source, keep.data, starts.tolist(), self.nbytes)
            self._sums = dict(zip(at.tolist(), sums, strict=True))
        else:
            copy(targets, source + at * self.nbytes, np.full(len(at), self.nbytes, np.int64))
        del keep, granted
        return len(at) * self.nbytes

    def copy_pieces_from(self, sources: I64, sizes: I64, first: int = 0) -> None:
        """Fill the writable blocks from position `first` on from pieces of memory, which the caller keeps alive.

        Row `i` of `sources` [keys, pieces] has the addresses of the pieces of block `first + i`; the `sizes` [pieces]
        add up to a block. Threads may fill different blocks at once. Does nothing if nothing is reserved.
        """
        if self._ended:
            raise ValueError("the reservation has ended")
        if sizes.sum() != self.nbytes:
            raise ValueError(f"expected pieces of {self.nbytes} bytes together, got {sizes.sum()}")
        granted = self._open()
        if granted is None:
            return
        at = np.flatnonzero(self.outcomes[first : first + len(sources)] == _WRITE)
        for position, pieces in zip((at + first).tolist(), sources[at], strict=True):
            window = self._window(granted, position)
            if self._checksums:
                self._sums[position] = copy_pieces_summed(window, pieces.tolist(), sizes.tolist())
            else:
                copy(window.ctypes.data + np.cumsum(sizes) - sizes, pieces, sizes)

    def commit(self, positions: Sequence[int] | None = None, checksums: Sequence[bytes] | None = None) -> CommitResult:
        """Publish all blocks in `writable`, or those at `positions` (the rest is aborted).

        `checksums` has 16 bytes for each published position; all zero means no checksum. If it is omitted, checksums
        are computed from the bytes, unless the client was attached without checksums. Do not write to the views
        afterwards. Raises ValueError for wrong arguments; the reservation then stays open.
        """
        started = perf_counter_ns()
        if positions is not None or checksums is not None:
            self._check(positions, checksums)
        if positions is not None and not len(positions):
            self.abort()
            return CommitResult(0, outcomes=self._codes)
        granted = self._open()
        if checksums is None and self._checksums and granted is not None:
            checksums = self._sum(granted, self.writable if positions is None else positions)
        ended = self._end()
        if ended is None:
            return CommitResult(0, outcomes=self._codes)
        slots = b"" if positions is None else np.array(positions, np.uint32).tobytes()
        return self._publish(ended, slots, b"".join(checksums or ()), started)

    def _publish(self, ended: _Grant, slots: bytes, checksums: bytes, started: int) -> CommitResult:
        attachment, number, _ = ended
        with self._link.lock:
            if self._memory.current is not attachment:  # data plane is gone; the next one numbers differently
                return CommitResult(0, Code.UNAVAILABLE, self._codes)
            attachment.writing.discard(number)
            answer = self._link.request(lambda at: wire.Commit(at, number, slots, checksums), checks.committed)
            attachment.count(COMMIT, started)
            if isinstance(answer, wire.BlocksCommitted):
                return CommitResult(answer.blocks, None, self._codes)
            if isinstance(answer, wire.Refused):
                self._link.emit_refused("commit_refused", answer)
                return CommitResult(0, code_of(answer.code), self._codes)
            if answer is Code.UNAVAILABLE:
                self._link.send_abort(number)
            return CommitResult(0, answer if isinstance(answer, Code) else Code.MALFORMED, self._codes)

    def _sum(self, granted: _Grant, positions: Sequence[int]) -> list[bytes]:
        return [
            self._sums[at] if at in self._sums and at not in self._viewed else checksum(self._window(granted, at))
            for at in positions
        ]

    def _check(self, positions: Sequence[int] | None, checksums: Sequence[bytes] | None) -> None:
        writable = self.writable
        published = writable if positions is None else list(positions)
        if sorted(set(published) & set(writable)) != sorted(published):
            raise ValueError(f"expected positions that are writable, each once, got {published[:16]}")
        if checksums is not None and [len(checksum) for checksum in checksums] != [wire.CHECKSUM_BYTES] * len(
            published
        ):
            raise ValueError(f"expected {len(published)} checksums of {wire.CHECKSUM_BYTES} bytes")

    def abort(self) -> None:
        """Give up the reservation. Does nothing when it has ended."""
        ended = self._end()
        if ended is None:
            return
        attachment, number, _ = ended
        with self._link.lock:
            if self._memory.current is attachment:
                attachment.writing.discard(number)
                answer = self._link.request(lambda at: wire.Abort(at, number), checks.answers(wire.Aborted))
                if answer is Code.UNAVAILABLE:  # refused locally: the data plane must still know
                    self._link.send_abort(number)

    def _end(self) -> _Grant | None:
        """End the reservation. Return what was reserved to one caller, None to all others."""
        with self._link.lock:
            ended, self._granted = self._granted, None
            self._ended = self._ended or ended is not None
        return ended

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()
