"""Reservations: room for missing blocks, a half-made thing until it is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from dataplane.client import checks
from dataplane.client.copies import Buffer, address_of, addresses, copy
from dataplane.client.memory import Memory, Window
from dataplane.client.world import World
from dataplane.protocol.codes import Code, Outcome, code_of
from dataplane.protocol.engine import CHECKSUM_BYTES, Reserved


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a commit."""

    blocks: int
    """Blocks that every reader can see now."""
    code: Code | None = None
    """Why nothing was published; None when it was."""


class Reservation:
    """One outcome a key. Fill `view(i)` for each `i` in `writable`, then `commit`; leaving the with-block without it
    aborts, and nothing of it was ever readable."""

    def __init__(
        self,
        keys: int,
        nbytes: int,
        commit: Callable[[World, int, bytes, bytes], Committed],
        abort: Callable[[World, int], None],
    ) -> None:
        self.nbytes = nbytes
        self.outcomes: npt.NDArray[np.uint8] = np.full(keys, Code.UNAVAILABLE, np.uint8)
        """An `Outcome` or a `Code` for each key."""
        self.number = 0
        self._ended = False
        self._codes = b""
        self._world: World | None = None
        self._mapped: dict[int, Memory] = {}
        self._segments: list[int] = []
        self._offsets: list[int] = []
        self._commit = commit
        self._abort = abort

    def grant(self, world: World, answer: Reserved) -> None:
        """Take the data plane's answer in, its segments mapped. Raises ProtocolError when its places are none."""
        outcomes = np.frombuffer(answer.outcomes, np.uint8)
        segments = np.frombuffer(answer.segments, np.uint32)
        offsets = np.frombuffer(answer.offsets, np.uint64)
        write = outcomes == Outcome.WRITE
        checks.places(world.segments, segments[write], offsets[write], self.nbytes)
        self._mapped = {number: world.segments[number] for number in set(segments[write].tolist())}
        self._world = world
        self.outcomes = outcomes
        self._codes = answer.outcomes
        self._segments = segments.tolist()
        self._offsets = offsets.tolist()
        self.number = answer.reservation

    def refuse(self, code: Code) -> None:
        """Refuse every key."""
        self.outcomes[:] = code

    @property
    def writable(self) -> list[int]:
        """Positions to fill."""
        found: list[int] = np.flatnonzero(self.outcomes == Outcome.WRITE).tolist()
        return found

    @property
    def refused(self) -> dict[Code, int]:
        """Refused keys by reason."""
        codes, counts = np.unique(self.outcomes, return_counts=True)
        known = (Outcome.WRITE, Outcome.PRESENT, Outcome.BUSY)
        return {
            code_of(code): number
            for code, number in zip(codes.tolist(), counts.tolist(), strict=True)
            if code not in known
        }

    def array(self, i: int) -> npt.NDArray[np.uint8]:
        """Where to write block `i`: a writable array of `nbytes` bytes over the arena."""
        if self._world is None or not self.number:
            raise ValueError("nothing is reserved, or the reservation has ended")
        if self._codes[i] != Outcome.WRITE:
            raise ValueError(f"key {i} is not to be written: outcome {self._codes[i]}")
        segment = self._mapped[self._segments[i]]
        return Window(None, segment, self._offsets[i], self.nbytes, writable=True).array()

    def view(self, i: int) -> memoryview:
        """Where to write block `i`: a writable memoryview of `nbytes` bytes over the arena."""
        return self.array(i).data

    def copy_from(self, buffer: bytes | Buffer) -> int:
        """Fill every writable block from a contiguous buffer that has all keys' blocks one after another.

        Much cheaper than a view for each block when blocks are small. Returns copied bytes: 0 when nothing is to be
        written.
        """
        if self._ended:
            raise ValueError("the reservation has ended")
        source, keep = address_of(buffer, len(self.outcomes) * self.nbytes, writable=False)
        if self._world is None or not self.number:
            return 0
        mapped = self._mapped
        at = np.flatnonzero(np.frombuffer(self._codes, np.uint8) == Outcome.WRITE)
        segments = np.array(self._segments, np.int64)[at]
        targets = addresses(mapped, segments, np.array(self._offsets, np.uint64)[at].astype(np.int64))
        copy(targets, source + at * self.nbytes, np.full(len(at), self.nbytes, np.int64))
        del keep, mapped
        return len(at) * self.nbytes

    def commit(
        self, positions: Sequence[int] | None = None, checksums: Sequence[bytes] | None = None
    ) -> Committed:
        """Publish what was written: all of `writable`, or the given positions (the rest is aborted).

        `checksums` has 16 bytes for each published position. Do not write to the views afterwards. Raises ValueError
        for wrong arguments; the reservation is open then.
        """
        if positions is not None or checksums is not None:
            self._check(positions, checksums)
        if positions is not None and not len(positions):
            self.abort()
            return Committed(0)
        ended = self._end()
        if ended is None:
            return Committed(0)
        slots = b"" if positions is None else np.array(positions, np.uint32).tobytes()
        return self._commit(*ended, slots, b"".join(checksums or ()))

    def _check(self, positions: Sequence[int] | None, checksums: Sequence[bytes] | None) -> None:
        writable = self.writable
        published = writable if positions is None else list(positions)
        if sorted(set(published) & set(writable)) != sorted(published):
            raise ValueError(f"expected positions that are writable, each once, got {published[:16]}")
        if checksums is not None and [len(each) for each in checksums] != [CHECKSUM_BYTES] * len(published):
            raise ValueError(f"expected {len(published)} checksums of {CHECKSUM_BYTES} bytes")

    def abort(self) -> None:
        """Give the reservation up; does nothing when it has ended."""
        ended = self._end()
        if ended is not None:
            self._abort(*ended)

    def _end(self) -> tuple[World, int] | None:
        """What is open, once; views keep their memory by themselves."""
        if not self.number or self._world is None:
            return None
        ended = self._world, self.number
        self._world, self.number, self._mapped, self._ended = None, 0, {}, True
        return ended

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
