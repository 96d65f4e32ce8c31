"""The queue's protocol as a step machine, and an explorer of everything that can happen.

Two writers (the second takes over) and two readers share the words of `dataplane.ipc.queue.layout`. Each step is one
load, one store, one fence or one system call, in the order of `ShmRingWriter.reserve`, of
`ShmRingWriter.commit` and `ShmRingWriter.write_now`, which both end with `ShmRingWriter._publish`, and of
`ShmRingReader._wait`, `ShmRingReader._finish`, `ShmRingReader._advance` and `ShmRingBuffer.claim`. As on x86-64, stores
wait in a buffer of the process and reach memory in order at any later time; a fence and a system call empty the buffer.
Any process may be killed between two steps, which loses its registers but not its buffered stores. Each message is one
position of a ring of `capacity` records, and has two halves: a reader that gets halves of different messages has read a
torn one.

`explore` visits every reachable state breadth first and returns the first fault with the steps that led to it:

* a reader that returns a torn message, a wrong one, or one out of order;
* a state in which nothing can happen but a message, or room, is there for a living process (a lost wake-up).

Sleepers look again after a slice of time. The model lets them do so only after a kill, so that a wake-up that is lost
without a kill is a fault.

With `mistakes`, the writer may take living readers for dead, as it did when it had no descriptor to look at them. A
reader whose slot is free then ends instead of returning what it has read. A message of the model may fill the ring, so
only bounds with `capacity` above 1 have what the reader relies on: that messages are published after the one that it
reads before that one's memory is used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

FREE, ACTIVE = 0, 1

# Words of the shared memory.
PUBLISHED, CHANGES, NEEDED, WRITER = range(4)
_SLOTS = 4
STATE, POSITION, SLEEPING = range(3)
_SLOT_WORDS = 3


def slot(reader: int, word: int) -> int:
    """Return the index of a word of a reader's slot."""
    return _SLOTS + reader * _SLOT_WORDS + word


@dataclass(frozen=True)
class Bounds:
    """What is explored, and what is left out of the protocol to see that the check finds it."""

    messages: int = 3
    capacity: int = 2
    readers: int = 2
    kills: int = 1
    late: tuple[int, ...] = (1,)
    """Readers that join at any time; the others are there from the beginning."""
    mistakes: bool = False
    """Whether the writer takes living readers for dead."""
    without: str = ""
    """A mutant: `join fence`, `publish fence`, `sleep fence`, `advance fence`, `room`, `order`, `join wake`,
    `dead readers`, `takeover position`, `wait fence`, or `slot check`."""


class Process(NamedTuple):
    """A process: where it is, its registers, and the stores that have not reached memory."""

    at: str
    a: int = 0
    b: int = 0
    buffer: tuple[tuple[int, int], ...] = ()
    read: str = ""
    """What is wrong with the message that a reader has read and not returned yet."""


class State(NamedTuple):
    """Everything. Processes: writer, second writer, readers."""

    memory: tuple[int, ...]
    ring: tuple[tuple[int, int], ...]
    """(first half, second half) of each record: the number of the message that was stored."""
    processes: tuple[Process, ...]
    kills: int


DEAD, ENDED = "dead", "ended"
_RING = 1000
"""Addresses of the halves of records: _RING + 2 * index + half."""


def start(bounds: Bounds) -> State:
    """Return the first state."""
    memory = [0, 0, 0, 0] + [0] * (_SLOT_WORDS * bounds.readers)
    processes = [Process("room"), Process("wait for death")]
    for reader in range(bounds.readers):
        late = reader in bounds.late
        memory[slot(reader, STATE)] = FREE if late else ACTIVE
        processes.append(Process("join" if late else "look", b=0))
    return State(tuple(memory), ((-1, -1),) * bounds.capacity, tuple(processes), 0)


class Explorer:
    """Successors of states, for one set of bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds

    # Memory as one process sees it, and stores that wait in its buffer.

    def load(self, state: State, process: Process, address: int) -> int:
        for known, value in reversed(process.buffer):
            if known == address:
                return value
        if address >= _RING:
            return state.ring[(address - _RING) // 2][(address - _RING) % 2]
        return state.memory[address]

    @staticmethod
    def put(process: Process, address: int, value: int, at: str, **registers: Any) -> Process:
        return process._replace(at=at, buffer=(*process.buffer, (address, value)), **registers)

    @staticmethod
    def drain(state: State, number: int, count: int | None = None) -> State:
        process = state.processes[number]
        if not process.buffer:
            return state
        take = process.buffer if count is None else process.buffer[:count]
        memory, ring = list(state.memory), list(state.ring)
        for address, value in take:
            if address >= _RING:
                index, half = divmod(address - _RING, 2)
                record = list(ring[index])
                record[half] = value
                ring[index] = (record[0], record[1])
            else:
                memory[address] = value
        processes = list(state.processes)
        processes[number] = process._replace(buffer=process.buffer[len(take) :])
        return State(tuple(memory), tuple(ring), tuple(processes), state.kills)

    # One step of each process. A step that must not be reordered drains the buffer first.

    def successors(self, state: State) -> Iterator[tuple[str, State | str]]:
        for number, process in enumerate(state.processes):
            if process.buffer:
                yield f"{number} drains", self.drain(state, number, 1)
            if process.at in (DEAD, ENDED):
                continue
            if state.kills < self.bounds.kills and process.at != "wait for death":
                yield f"{number} killed", self._killed(state, number)
            steps = self._writer(state, number) if number < 2 else self._reader(state, number)
            for name, following in steps:
                yield f"{number} {name}", following

    def _killed(self, state: State, number: int) -> State:
        drained = self.drain(state, number)  # what was stored reaches memory; the kernel's view is after it
        return self._with(drained, number, Process(DEAD))._replace(kills=state.kills + 1)

    @staticmethod
    def _with(state: State, number: int, process: Process) -> State:
        processes = (*state.processes[:number], process, *state.processes[number + 1 :])
        return State(state.memory, state.ring, processes, state.kills)

    def _fenced(self, state: State, number: int, mutant: str) -> State:
        return state if self.bounds.without == mutant else self.drain(state, number)

    @staticmethod
    def _slices(state: State) -> bool:
        """Whether sleepers look by themselves: only the wake-ups of dead processes may be lost."""
        return any(each.at == DEAD for each in state.processes)

    def _wake(self, state: State, sleeping: str, to: str) -> State:
        processes = tuple(each._replace(at=to) if each.at == sleeping else each for each in state.processes)
        return state._replace(processes=processes)

    def _writer(self, state: State, number: int) -> Iterator[tuple[str, State | str]]:
        """Registers: a, the position; b, the reader whose position is looked at."""
        bounds, process = self.bounds, state.processes[number]
        at, position, reader = process.at, process.a, process.b
        readers = range(bounds.readers)
        if at == "wait for death":
            if state.processes[0].at == DEAD:
                if bounds.without == "takeover position":
                    recovered = max(each[0] for each in state.ring) + 1  # what it finds, published or not
                else:
                    recovered = state.memory[PUBLISHED]
                yield ("takes over", self._with(state, number, self.put(process, NEEDED, 0, "room", a=recovered)))
        elif at == "room":
            if position == bounds.messages:
                yield "ends", self._with(state, number, process._replace(at=ENDED))
            elif bounds.without == "room":
                yield "does not look", self._with(state, number, process._replace(at="first half"))
            else:
                yield "looks for room", self._with(state, number, process._replace(at="scan", b=0))
        elif at == "scan":
            if reader == bounds.readers:
                yield "has room", self._with(state, number, process._replace(at="first half"))
            elif self.load(state, process, slot(reader, STATE)) == FREE:
                yield "skips a free slot", self._with(state, number, process._replace(b=reader + 1))
            elif self.load(state, process, slot(reader, POSITION)) > position - bounds.capacity:
                yield "passes a reader", self._with(state, number, process._replace(b=reader + 1))
            else:
                needed = position - bounds.capacity + 1
                yield ("asks to be woken", self._with(state, number, self.put(process, NEEDED, needed, "wait fence")))
        elif at == "wait fence":
            fenced = self._fenced(state, number, "wait fence")
            yield "fences", self._with(fenced, number, fenced.processes[number]._replace(at="wait check"))
        elif at == "wait check":
            slow = self.load(state, process, slot(reader, POSITION)) <= position - bounds.capacity
            there = self.load(state, process, slot(reader, STATE)) == ACTIVE
            if slow and there:
                yield "is about to sleep", self._with(state, number, process._replace(at="futex room"))
            else:
                yield "need not sleep", self._with(state, number, self.put(process, NEEDED, 0, "scan", b=0))
        elif at == "futex room":
            # The kernel compares under its lock. Without the fence, this is modelled as a load of the process.
            drained = state if bounds.without == "wait fence" else self.drain(state, number)
            slow = drained.memory[slot(reader, POSITION)] <= position - bounds.capacity
            to = "asleep room" if slow else "woken room"
            yield "sleeps", self._with(drained, number, drained.processes[number]._replace(at=to))
        elif at == "asleep room":
            slow = state.memory[slot(reader, POSITION)] <= position - bounds.capacity
            if not slow and self._slices(state):
                yield "looks after a slice", self._with(state, number, process._replace(at="woken room"))
            dead = state.processes[2 + reader].at == DEAD or bounds.mistakes
            if bounds.without != "dead readers" and dead:  # after a slice
                yield (
                    "drops a dead reader",
                    self._with(state, number, self.put(process, slot(reader, STATE), FREE, "woken room")),
                )
        elif at == "woken room":
            yield "wakes up", self._with(state, number, self.put(process, NEEDED, 0, "scan", b=0))
        elif at in ("first half", "second half"):
            half = 0 if at == "first half" else 1
            address = _RING + 2 * (position % bounds.capacity) + half
            to = "second half" if half == 0 else "publish"
            if bounds.without == "order" and half == 0:
                early = self.put(process, PUBLISHED, position + 1, at)
                yield "publishes early", self._with(state, number, self.put(early, address, position, to))
            else:
                yield f"stores the {at}", self._with(state, number, self.put(process, address, position, to))
        elif at == "publish":
            following = self.put(process, PUBLISHED, position + 1, "publish fence", a=position + 1)
            yield "publishes", self._with(state, number, following)
        elif at == "publish fence":
            fenced = self._fenced(state, number, "publish fence")
            yield "fences", self._with(fenced, number, fenced.processes[number]._replace(at="sleepers", b=0))
        elif at == "sleepers":
            active = [each for each in readers if self.load(state, process, slot(each, STATE)) == ACTIVE]
            if any(self.load(state, process, slot(each, SLEEPING)) for each in active):
                drained = self.drain(state, number)
                woken = self._wake(drained, "asleep", "awake")
                yield "wakes readers", self._with(woken, number, woken.processes[number]._replace(at="room"))
            else:
                yield "wakes none", self._with(state, number, process._replace(at="room"))

    def _reader(self, state: State, number: int) -> Iterator[tuple[str, State | str]]:
        """Registers: a, the position; b, the first half of the message that is read, plus one."""
        bounds, process = self.bounds, state.processes[number]
        at, position = process.at, process.a
        own = number - 2
        if at == "join":
            published = self.load(state, process, PUBLISHED)
            yield (
                "takes a position",
                self._with(state, number, self.put(process, slot(own, POSITION), published, "activate", a=published)),
            )
        elif at == "activate":
            yield (
                "becomes active",
                self._with(state, number, self.put(process, slot(own, STATE), ACTIVE, "join fence")),
            )
        elif at == "join fence":
            fenced = self._fenced(state, number, "join fence")
            yield "fences", self._with(fenced, number, fenced.processes[number]._replace(at="joined?"))
        elif at == "joined?":
            published = self.load(state, process, PUBLISHED)
            if published == position:
                yield "has joined", self._with(state, number, process._replace(at="join wake"))
            else:
                yield (
                    "moves on",
                    self._with(
                        state, number, self.put(process, slot(own, POSITION), published, "join fence", a=published)
                    ),
                )
        elif at == "join wake":
            drained = self.drain(state, number)
            woken = drained if bounds.without == "join wake" else self._wake(drained, "asleep room", "woken room")
            yield "wakes the writer", self._with(woken, number, woken.processes[number]._replace(at="look"))
        elif at == "look":
            if position == bounds.messages:
                yield "ends", self._with(state, number, process._replace(at=ENDED))
            elif self.load(state, process, PUBLISHED) > position:
                yield "sees a message", self._with(state, number, process._replace(at="first"))
            else:
                yield (
                    "is about to sleep",
                    self._with(state, number, self.put(process, slot(own, SLEEPING), 1, "sleep fence")),
                )
        elif at == "sleep fence":
            fenced = self._fenced(state, number, "sleep fence")
            yield "fences", self._with(fenced, number, fenced.processes[number]._replace(at="futex"))
        elif at == "futex":
            # Without the fence, the kernel's comparison is modelled as the load of the process.
            weak = bounds.without == "sleep fence"
            state = state if weak else self.drain(state, number)
            process = state.processes[number]
            if self.load(state, process, PUBLISHED) > position:
                yield "need not sleep", self._with(state, number, process._replace(at="awake"))
            else:
                yield "sleeps", self._with(state, number, process._replace(at="asleep"))
        elif at == "asleep":
            if state.memory[PUBLISHED] > position and self._slices(state):
                yield "looks after a slice", self._with(state, number, process._replace(at="awake"))
            if bounds.mistakes and state.memory[slot(own, STATE)] == FREE:
                yield "looks at its slot after a slice", self._with(state, number, process._replace(at=ENDED))
        elif at == "awake":
            yield "wakes up", self._with(state, number, self.put(process, slot(own, SLEEPING), 0, "look"))
        elif at == "first":
            half = self.load(state, process, _RING + 2 * (position % bounds.capacity))
            yield "reads the first half", self._with(state, number, process._replace(at="second", b=half + 1))
        elif at == "second":
            half = self.load(state, process, _RING + 2 * (position % bounds.capacity) + 1)
            if half != process.b - 1:
                read = f"reader {own} read a torn message: {process.b - 1} and {half}"
            elif half != position:
                read = f"reader {own} read message {half} in place of {position}"
            else:
                read = ""
            following = process._replace(at="finish", read=read)
            yield "reads the second half", self._with(state, number, following)
        elif at == "finish":
            lags = self.load(state, process, PUBLISHED) != position + 1 and bounds.without != "slot check"
            at = "slot" if lags else "return"
            yield "looks at what is published", self._with(state, number, process._replace(at=at))
        elif at == "slot":
            is_active = self.load(state, process, slot(own, STATE)) == ACTIVE
            at = "return" if is_active else ENDED
            yield "looks at its slot", self._with(state, number, process._replace(at=at))
        elif at == "return":
            done = position + 1
            following = self.put(process, slot(own, POSITION), done, "advance fence", a=done, b=0)
            yield "returns the message", process.read or self._with(state, number, following)
        elif at == "advance fence":
            fenced = self._fenced(state, number, "advance fence")
            yield "fences", self._with(fenced, number, fenced.processes[number]._replace(at="wanted"))
        elif at == "wanted":
            needed = self.load(state, process, NEEDED)
            if needed and position >= needed:
                drained = self.drain(state, number)
                woken = self._wake(drained, "asleep room", "woken room")
                yield ("wakes the writer", self._with(woken, number, woken.processes[number]._replace(at="look")))
            else:
                yield "wakes none", self._with(state, number, process._replace(at="look"))

    def stuck(self, state: State) -> str | None:
        """Return what is wrong with a state that has no successor but kills."""
        memory = state.memory
        for number, process in enumerate(state.processes[2:]):
            if process.at == "asleep" and memory[PUBLISHED] > process.a:
                return f"reader {number} sleeps at {process.a} although {memory[PUBLISHED]} messages were published"
        for number, process in enumerate(state.processes[:2]):
            if process.at == "asleep room":
                return f"writer {number} sleeps at {process.a} although its readers are done"
        return None


class Exploration(NamedTuple):
    """The number of states, and the fault with the steps that lead to it."""

    states: int
    fault: str | None
    steps: list[str]


def explore(bounds: Bounds) -> Exploration:
    """Visit every reachable state, until one is wrong."""
    explorer = Explorer(bounds)
    first = start(bounds)
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])

    def path(state: State) -> list[str]:
        steps = []
        while (before := came_from[state]) is not None:
            state, name = before
            steps.append(name)
        return steps[::-1]

    while waiting:
        state = waiting.popleft()
        moved = False
        for name, following in explorer.successors(state):
            if isinstance(following, str):
                return Exploration(len(came_from), following, [*path(state), name])
            moved = moved or not name.endswith("killed")
            if following not in came_from:
                came_from[following] = (state, name)
                waiting.append(following)
        if not moved and (fault := explorer.stuck(state)):
            return Exploration(len(came_from), fault, path(state))
    return Exploration(len(came_from), None, [])
