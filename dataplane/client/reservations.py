"""Reservations: room for missing blocks, invisible to readers until the commit."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from dataplane.client import checks
from dataplane.client.attachment import Attachment
from dataplane.client.copies import Buffer, address_of, addresses, copy, copy_pieces_summed, copy_summed
from dataplane.client.link import EngineLink
from dataplane.client.memory import SharedMapping, window
from dataplane.protocol import engine as wire
from dataplane.protocol.checksums import checksum
from dataplane.protocol.codes import Code, ReserveOutcome, code_of
from dataplane.protocol.layout import COMMIT, I64

_WRITE = int(ReserveOutcome.WRITE)
_NOT_REFUSED = frozenset(int(outcome) for outcome in ReserveOutcome)
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
        return None if outcome in _NOT_REFUSED else code_of(outcome)

    def __repr__(self) -> str:
        code = None if self.code is None else self.code.name
        refused = ", ".join(f"{reason.name}: {number}" for reason, number in self.refused.items())
        more = f", refused={{{refused}}}" if refused else ""
        return f"CommitResult(blocks={self.blocks}, code={code}{more})"


class Reservation:
    """Room for the missing blocks of a chain, with one outcome per key.

    Fill `view(i)` for each `i` in `writable`, then call `commit`. Leaving the `with` block without a commit aborts;
    readers never see any of it.
    """

    def __init__(self, keys: int, nbytes: int, link: EngineLink, lock: threading.RLock, *, checksums: bool) -> None:
        """`lock` is the client's, which serialises the calls of `link`."""
        self.nbytes = nbytes
        self.number = 0
        self._ended = False
        self._codes = _UNAVAILABLE * keys
        self._attachment: Attachment | None = None
        self._mapped: dict[int, SharedMapping] = {}
        self._segments: list[int] = []
        self._offsets: list[int] = []
        self._link = link
        self._lock = lock
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
        self._mapped = {number: attachment.segments[number] for number in offsets_by_segment}
        for number, memory in self._mapped.items():
            memory.prepare(offsets_by_segment[number], self.nbytes)
        self._attachment = attachment
        self._codes = answer.outcomes
        self._segments = segments
        self._offsets = offsets
        self.number = answer.reservation

    def refuse(self, code: Code) -> None:
        """Refuse every key."""
        self._codes = bytes((code,)) * len(self._codes)

    @property
    def outcomes(self) -> npt.NDArray[np.uint8]:
        """A `ReserveOutcome` or a `Code` for each key; read-only."""
        return np.frombuffer(self._codes, np.uint8)

    @property
    def _open(self) -> bool:
        """Whether memory may be touched. Always False in a forked child, where nothing is mapped."""
        return self.number != 0 and self._attachment is not None and self._attachment.alive

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
        if not self._open:
            raise ValueError("nothing is reserved, or the reservation has ended")
        if self._codes[i] != _WRITE:
            raise ValueError(f"key {i} is not to be written: outcome {self._codes[i]}")
        if self._checksums:
            self._viewed.add(range(len(self._codes))[i])
        return self._window(i)

    def _window(self, i: int) -> npt.NDArray[np.uint8]:
        segment = self._mapped[self._segments[i]]
        return window(None, segment, self._offsets[i], self.nbytes, writable=True)

    def memory(self, i: int) -> SharedMapping:
        """Return the mapping that contains block `i`, for registration with a device."""
        if not self._open:
            raise ValueError("nothing is reserved, or the reservation has ended")
        return self._mapped[self._segments[i]]

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
        if not self._open:
            return 0
        mapped = self._mapped
        at = np.flatnonzero(self.outcomes == _WRITE)
        segments = np.array(self._segments, np.int64)[at]
        targets = addresses(mapped, segments, np.array(self._offsets, np.uint64)[at].astype(np.int64))
        if self._checksums:
            starts = at * self.nbytes
            sums = copy_summed(targets.tolist(), source, keep.data, starts.tolist(), self.nbytes)
            self._sums = dict(zip(at.tolist(), sums, strict=True))
        else:
            copy(targets, source + at * self.nbytes, np.full(len(at), self.nbytes, np.int64))
        del keep, mapped
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
        if not self._open:
            return
        at = np.flatnonzero(self.outcomes[first : first + len(sources)] == _WRITE)
        for position, pieces in zip((at + first).tolist(), sources[at], strict=True):
            window = self._window(position)
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
        if checksums is None and self._checksums and self._open:
            checksums = self._sum(self.writable if positions is None else positions)
        ended = self._end()
        if ended is None:
            return CommitResult(0, outcomes=self._codes)
        slots = b"" if positions is None else np.array(positions, np.uint32).tobytes()
        return self._publish(*ended, slots, b"".join(checksums or ()), started)

    def _publish(
        self, attachment: Attachment, number: int, slots: bytes, checksums: bytes, started: int
    ) -> CommitResult:
        with self._lock:
            if self._link.attachment is not attachment:  # data plane is gone; the next one numbers differently
                return CommitResult(0, Code.UNAVAILABLE, self._codes)
            answer = self._link.ask(lambda at: wire.Commit(at, number, slots, checksums), checks.committed)
            attachment.count(COMMIT, started)
            if isinstance(answer, wire.BlocksCommitted):
                return CommitResult(answer.blocks, None, self._codes)
            if isinstance(answer, wire.Refused):
                self._link.emit_refused("commit_refused", answer)
                return CommitResult(0, code_of(answer.code), self._codes)
            if answer is Code.UNAVAILABLE:
                self._link.send_abort(number)
            return CommitResult(0, answer if isinstance(answer, Code) else Code.MALFORMED, self._codes)

    def _sum(self, positions: Sequence[int]) -> list[bytes]:
        return [
            self._sums[at] if at in self._sums and at not in self._viewed else checksum(self._window(at))
            for at in positions
        ]

    def _check(self, positions: Sequence[int] | None, checksums: Sequence[bytes] | None) -> None:
        writable = self.writable
        published = writable if positions is None else list(positions)
        if sorted(set(published) & set(writable)) != sorted(published):
            raise ValueError(f"expected positions that are writable, each once, got {published[:16]}")
        if checksums is not None and [len(each) for each in checksums] != [wire.CHECKSUM_BYTES] * len(published):
            raise ValueError(f"expected {len(published)} checksums of {wire.CHECKSUM_BYTES} bytes")

    def abort(self) -> None:
        """Give up the reservation. Does nothing when it has ended."""
        ended = self._end()
        if ended is None:
            return
        attachment, number = ended
        with self._lock:
            if self._link.attachment is attachment:
                answer = self._link.ask(lambda at: wire.Abort(at, number), checks.answers(wire.Aborted))
                if answer is Code.UNAVAILABLE:  # refused locally: the data plane must still know
                    self._link.send_abort(number)

    def _end(self) -> tuple[Attachment, int] | None:
        """End the reservation. Return its attachment and number the first time, None afterwards."""
        if not self.number or self._attachment is None:
            return None
        ended = self._attachment, self.number
        self._attachment, self.number, self._mapped, self._ended = None, 0, {}, True
        return ended

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()
