"""A model of the store's protocol, small enough to explore every state: one slot, one writer, readers, kills anywhere.

Stores of a process wait in its store buffer, as on x86, and reach memory in order, at any later time; a barrier of the
writer empties all buffers. A buffer has room for two stores. Each transition is one load or store, one flush, or one
kill. The steps are those of `steps`, `entries` and `attachment`; a mutant leaves one out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Literal, NamedTuple

FREE, WRITING, READY, RETIRED = range(4)
DEAD = -1
BUFFER = 2

Mutant = Literal[
    "",
    "no barrier",
    "no second look",
    "publish first",
    "free unseen",
    "reclaim the living",
    "keep leases of the dead",
    "keep writes of the dead",
]


class Reader(NamedTuple):
    step: int = 0
    """0 idle, 1 raised, 2 reading the first half, 3 reading the second half, 4 lowering; DEAD."""
    expected: int = -1
    """Sequence of the handle."""
    first: int = -1
    """Content of the first half."""


class Writer(NamedTuple):
    step: int = 0
    """0 idle, 1 and 2 copying, 3 publishing, 4 fencing, 5 counting leases, 6 freeing; DEAD."""
    row: int = 0
    """The row whose lease is counted next."""


class State(NamedTuple):
    """Memory, the processes, and their store buffers: tuples of (address, value)."""

    control: tuple[int, int]
    """Sequence and state."""
    halves: tuple[int, int]
    """The two halves of the bytes: which object's they are."""
    leases: tuple[int, ...]
    living: tuple[bool, ...]
    """Whether the kernel lock of each reader's row is held."""
    next_sequence: int
    writer: Writer
    readers: tuple[Reader, ...]
    buffers: tuple[tuple[tuple[str, int, tuple[int, int] | int], ...], ...]
    """Of each reader, and of the writer last."""
    published: int
    """The last object that was published, which handles name."""


class Violation(Exception):
    """A reader saw wrong bytes."""


class Model:
    """Explores all states that follow from the first one."""

    def __init__(self, *, readers: int = 2, objects: int = 3, mutant: Mutant = "") -> None:
        self.readers = readers
        self.objects = objects
        self.mutant = mutant

    def explore(self) -> tuple[int, bool]:
        """Return the number of states, and whether from each of them a new writer can get the memory back.

        Raise Violation with the state if a reader sees wrong bytes.
        """
        first = State(
            (-1, FREE),
            (-1, -1),
            (0,) * self.readers,
            (True,) * self.readers,
            0,
            Writer(),
            (Reader(),) * self.readers,
            ((),) * (self.readers + 1),
            -1,
        )
        seen = {first}
        todo = deque([first])
        recoverable = True
        while todo:
            state = todo.popleft()
            recoverable = recoverable and self.recovers(state)
            for following in self.successors(state):
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
        return len(seen), recoverable

    def recovers(self, state: State) -> bool:
        """Return whether a new writer frees the slot after all other processes have been killed."""
        for reader in range(self.readers):
            state = self.killed(state, reader)
        state = self.killed(state, self.readers)
        state = self.taken_over(state)
        return state.control[1] == FREE or (
            state.control[1] in (READY, RETIRED) and not any(state.leases) and state.writer.step == 0
        )

    def successors(self, state: State) -> Iterator[State]:
        for process in range(self.readers + 1):
            if state.buffers[process]:
                yield flushed(state, process)
        for reader in range(self.readers):
            if state.readers[reader].step == DEAD:
                continue
            if len(state.buffers[reader]) < BUFFER:
                yield from self.reader_steps(state, reader)
            yield self.killed(state, reader)
        if state.writer.step == DEAD:
            yield self.taken_over(state)
        else:
            if len(state.buffers[self.readers]) < BUFFER:
                yield from self.writer_steps(state)
            yield self.killed(state, self.readers)

    def reader_steps(self, state: State, number: int) -> Iterator[State]:
        reader = state.readers[number]

        def to(after: Reader, now: State = state) -> State:
            return now._replace(readers=replaced(now.readers, number, after))

        if reader.step == 0 and state.published >= 0:
            now = stored(state, number, "lease", number, 1)
            yield to(Reader(1, state.published), now)
        elif reader.step == 1:
            control = state.control
            whole = control == (reader.expected, READY) or self.mutant == "no second look"
            yield to(reader._replace(step=2 if whole else 4))
        elif reader.step == 2:
            yield to(reader._replace(step=3, first=state.halves[0]))
        elif reader.step == 3:
            if (reader.first, state.halves[1]) != (reader.expected, reader.expected):
                raise Violation(state)
            yield to(reader._replace(step=4))
        elif reader.step == 4:
            yield to(Reader(), stored(state, number, "lease", number, 0))

    def writer_steps(self, state: State) -> Iterator[State]:
        writer, me = state.writer, self.readers
        sequence, status = seen_by(state, me, "control", 0)

        def to(step: int, now: State = state, row: int = 0) -> State:
            return now._replace(writer=Writer(step, row))

        if writer.step == 0:
            if status == FREE and state.next_sequence < self.objects:
                new = state.next_sequence
                early = READY if self.mutant == "publish first" else WRITING
                now = stored(state, me, "control", 0, (new, early))
                if early == READY:
                    now = now._replace(published=new)
                yield to(1, now._replace(next_sequence=state.next_sequence + 1))
            elif status == READY:
                yield to(4, stored(state, me, "control", 0, (sequence, RETIRED)))
            elif status == RETIRED:
                yield to(4)
        elif writer.step in (1, 2):
            yield to(writer.step + 1, stored(state, me, "half", writer.step - 1, sequence))
        elif writer.step == 3:
            now = stored(state, me, "control", 0, (sequence, READY))
            yield to(0, now._replace(published=sequence))
        elif writer.step == 4:
            now = state
            if self.mutant != "no barrier":
                for process in range(self.readers + 1):
                    while now.buffers[process]:
                        now = flushed(now, process)
            yield to(5, now)
        elif writer.step == 5:
            row = writer.row
            leased = state.leases[row] and self.mutant != "free unseen"
            dead = not state.living[row] and self.mutant != "keep leases of the dead"
            if leased and (dead or self.mutant == "reclaim the living"):
                state = state._replace(leases=replaced(state.leases, row, 0))
                leased = 0
            if leased:
                yield to(0, state)  # still read: it stays RETIRED
            elif row + 1 < self.readers:
                yield to(5, state, row + 1)
            else:
                yield to(6, state)
        elif writer.step == 6:
            yield to(0, stored(state, me, "control", 0, (sequence, FREE)))

    def killed(self, state: State, process: int) -> State:
        """The kernel ends a process: its stores reach memory, and then it drops the lock of the row."""
        while state.buffers[process]:
            state = flushed(state, process)
        if process == self.readers:
            return state._replace(writer=Writer(DEAD))
        return state._replace(
            readers=replaced(state.readers, process, Reader(DEAD)), living=replaced(state.living, process, False)
        )

    def taken_over(self, state: State) -> State:
        """A new writer frees what the dead one was writing, and gives back the leases of dead readers."""
        leases = tuple(
            lease if lives or self.mutant == "keep leases of the dead" else 0
            for lease, lives in zip(state.leases, state.living, strict=True)
        )
        sequence, status = state.control
        control = (sequence, FREE) if status == WRITING and self.mutant != "keep writes of the dead" else state.control
        return state._replace(writer=Writer(), leases=leases, control=control)


def stored(state: State, process: int, what: str, at: int, value: tuple[int, int] | int) -> State:
    """A store enters the buffer of its process."""
    buffer = (*state.buffers[process], (what, at, value))
    return state._replace(buffers=replaced(state.buffers, process, buffer))


def seen_by(state: State, process: int, what: str, at: int) -> tuple[int, int]:
    """A process sees its own stores before memory has them."""
    for each, offset, value in reversed(state.buffers[process]):
        if (each, offset) == (what, at):
            return value  # type: ignore[return-value]
    return state.control if what == "control" else state.leases[at]  # type: ignore[return-value]


def flushed(state: State, process: int) -> State:
    """The oldest store of a buffer reaches memory."""
    (what, at, value), *rest = state.buffers[process]
    state = state._replace(buffers=replaced(state.buffers, process, tuple(rest)))
    if what == "control":
        return state._replace(control=value)  # type: ignore[arg-type]
    if what == "half":
        return state._replace(halves=replaced(state.halves, at, value))
    return state._replace(leases=replaced(state.leases, at, value))


def replaced(items: tuple, at: int, value: object) -> tuple:
    return (*items[:at], value, *items[at + 1 :])
