"""Where a data plane's memory and its core come together: fresh, or gone on with after a `kill -9`.

A start is warm when the supervisor hands memory over that this version laid out, that its settings describe, and whose
writer is proven gone. Anything else is a cold start with one log line that says why, never a crash.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from dataplane.core.books import B_MEMORY, Books, Writer, books_bytes
from dataplane.core.names import EngineName, Known, Names, names_bytes
from dataplane.core.node import Node
from dataplane.core.restore import Contradiction, Kept, Restored, restore, segments_here
from dataplane.protocol.events import MemoryAdopted
from dataplane.protocol.layout import (
    COLD_STORED_AT,
    H_ADOPTED_NS,
    H_CLOSED,
    H_EPOCH,
    H_MEMORY,
    H_PID,
    LayoutError,
)
from dataplane.tiers.inherited import CannotAdopt, Inherited
from dataplane.tiers.memory import NodeMemory
from dataplane.transport.peers import has_exited, open_process

WRITER_ENDS_S = 5.0
"""How long a predecessor that was killed may take to be gone."""

log = structlog.stdlib.get_logger()

MakeMemory = Callable[[dict[str, int], Inherited | None], NodeMemory]
"""Memory with private kinds of these sizes: fresh, or of what was inherited."""
MakeNode = Callable[[NodeMemory, Books, Names, int], Node]
"""A node over memory; the last argument is the least capacity in bytes that what is there needs."""
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Core:
    """Memory and the node over it."""

    memory: NodeMemory
    node: Node
    books: Books
    restored: Restored | None = None
    """None after a cold start."""


def begin(
    handed: list[tuple[str, int, int]],
    writer: Writer,
    max_blocks: int,
    make_memory: MakeMemory,
    make_node: MakeNode,
    clock: Clock,
) -> Core:
    """Go on with handed-over memory (kind, number, fd), or begin with fresh memory. Raises MemoryError, OSError."""
    sizes = {"books": books_bytes(max_blocks), "names": names_bytes()}
    if handed:
        try:
            return _go_on(handed, sizes, writer, make_memory, make_node, clock)
        except (CannotAdopt, LayoutError, Contradiction, MemoryError) as error:
            log.warning(
                "memory.not_adopted", reason=str(error), effect="the start is cold: nothing is cached"
            )
        except Exception:  # memory that is broken in a way nobody thought of must not keep the node down
            log.exception("memory.not_adopted", effect="the start is cold: nothing is cached")
    memory = make_memory(sizes, None)
    books = Books(memory.view("books"), max_blocks)
    names = Names(memory.view("names"))
    names.format()
    books.format(memory.index.cells[H_MEMORY])
    books.sign(writer)
    memory.index.format(writer.epoch, writer.pid)
    return Core(memory, make_node(memory, books, names, 0), books)


def _go_on(
    handed: list[tuple[str, int, int]],
    sizes: dict[str, int],
    writer: Writer,
    make_memory: MakeMemory,
    make_node: MakeNode,
    clock: Clock,
) -> Core:
    started = clock()
    inherited = Inherited.take(handed)
    try:
        memory = make_memory(sizes, inherited)
    finally:
        inherited.close()
    try:
        books = Books.attach(memory.view("books"))
        names, known = Names.attach(memory.view("names"))
        identity = memory.index.cells[H_MEMORY]
        if not identity or int(books.header[B_MEMORY]) != identity:
            raise LayoutError("its index and its books are not of one memory")
        if memory.index.cells[H_CLOSED]:
            raise CannotAdopt("the data plane before stopped in good order and gave it up")
        _await_end(books.writer)
        books.sign(writer)  # from here on we are the writer: nobody else may go on with it while we live
        index = memory.index
        index.header[H_EPOCH], index.header[H_PID] = writer.epoch, writer.pid
        node, restored = _restore(memory, books, names, known, make_node, clock())
    except BaseException:
        memory.close()
        raise
    node.emit(
        MemoryAdopted(
            at=clock(),
            blocks=restored.blocks,
            bytes=restored.bytes,
            quarantined_blocks=restored.quarantined_blocks,
            engines=restored.engines,
            seconds=clock() - started,
        )
    )
    if restored.lost_blocks:
        log.warning("memory.incomplete", blocks=restored.lost_blocks, reason="their segments were not held")
    return Core(memory, node, books, restored)


def _restore(
    memory: NodeMemory, books: Books, names: Names, known: Known, make_node: MakeNode, now: float
) -> tuple[Node, Restored]:
    index = memory.index
    memfds = {number: file.nbytes for number, file in memory.segments.items()}
    named = memory.named if memory.named is not None and memory.named.adopted else None
    segments = segments_here(known, index, memfds, 0 if named is None else named.nbytes)
    needed = sum(nbytes for number, nbytes in segments.items() if number in known.segments)
    node = make_node(memory, books, names, needed)
    stored = int(index.cold[:, COLD_STORED_AT].max())
    # What this process stores is later than that, also when the clock was set back.
    index.header[H_ADOPTED_NS] = max(int(now * 1e9), stored + 1)
    restored = restore(node, Kept(known, segments, memory.inherited_area, _lives), now)
    here = node.pool.slabs.segments
    memory.inherited_parts(
        (each.number, each.base, each.nbytes) for each in here.values() if each.base is not None
    )
    for number in memory.segments.keys() - here.keys():
        memory.retire_segment(number)
    for client in memory.areas.keys() - node.engines.keys():
        memory.retire_area(client)
    if named is None:  # what they mapped is gone
        for engine in [each for each in node.engines.values() if each.gateway]:
            node.goodbye(engine.client, now)
    return node, restored


def _lives(engine: EngineName) -> bool:
    if not engine.pid:  # of another pid namespace: it cannot be seen, so it is never proven gone
        return True
    pidfd = open_process(engine.pid, engine.started)
    if pidfd is None:
        return False
    os.close(pidfd)
    return True


def _await_end(writer: Writer) -> None:
    """The process that wrote the memory last must be gone. Raises CannotAdopt."""
    if not writer.pid:
        return
    pidfd = open_process(writer.pid, writer.started)
    if pidfd is None:
        return
    try:
        if not has_exited(pidfd, WRITER_ENDS_S):
            raise CannotAdopt(f"process {writer.pid} still writes it")
    finally:
        os.close(pidfd)
