"""Create the memory and the core of a data plane: fresh, or adopted from a predecessor.

A start is warm if memory is handed over that this version laid out, that matches the settings, and whose writer is
proven gone. Any other start is cold, with one log line that says why; bad memory never causes a crash.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from dataplane.core.blocks.leases import LeaseTable
from dataplane.core.journal.id_journal import (
    EngineName,
    IdJournal,
    JournalContents,
    half_bytes_for,
    migrated,
    names_bytes,
)
from dataplane.core.journal.recovery_table import B_CAPACITY, B_MEMORY, RecoveryTable, TableWriter, recovery_table_bytes
from dataplane.core.node import Node, NodeOptions
from dataplane.core.restore import Contradiction, Restored, SurvivingMemory, restore, surviving_segments
from dataplane.holding import SOCKETS
from dataplane.io.peers import open_process, started_at
from dataplane.ipc.processes import has_exited
from dataplane.memory.inherited import NAMED, CannotAdopt, InheritedMemory
from dataplane.memory.memory import NodeMemory
from dataplane.memory.pages import HUGE_BYTES, PAGE_BYTES
from dataplane.memory.prefault import Prefault
from dataplane.memory.shared_file import SharedFile
from dataplane.protocol.events import Event, MemoryAdopted
from dataplane.protocol.layout import COLD_STORED_AT, H_ADOPTED_NS, H_CLOSED, H_EPOCH, H_MEMORY, H_PID, LayoutError
from dataplane.recovery import named_segment
from dataplane.settings import DataPlaneSettings

WRITER_ENDS_S = 5.0
"""Time within which a killed predecessor must be gone."""
NOT_NOW = (errno.EBUSY, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that are no defect of the memory."""

log = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class Core:
    """Memory, and the node over it."""

    memory: NodeMemory
    node: Node
    restored: Restored | None = None
    """None after a cold start."""
    not_adopted: str = ""
    """Reason why memory that was handed over was not adopted; empty if it was, or if there was none."""


class CoreFactory:
    """Creates memory and nodes as the settings say."""

    def __init__(
        self,
        settings: DataPlaneSettings,
        name: str,
        handed: list[tuple[str, int, int]],
        leases: Callable[[], LeaseTable],
        clock: Callable[[], float],
        emit: Callable[[Event], None],
        made: Callable[[str, int, SharedFile], None],
        dropped: Callable[[str, int], None],
        may_give_back: Callable[[], bool],
        prefault: Prefault | None,
    ) -> None:
        """`name` is the name of the node; `emit` takes its events; `made` and `dropped` are called for each piece of
        memory; `may_give_back` is that of `NamedFile`."""
        self.clock = clock
        self.max_blocks = settings.max_blocks
        self.writer = TableWriter(secrets.randbits(63) | 1, os.getpid(), started_at(os.getpid()))
        self.private_sizes = _private_sizes(settings.max_blocks)
        self._settings, self._name, self._leases, self._emit = settings, name, leases, emit
        self._made, self._dropped, self._prefault = made, dropped, prefault
        self._may_give_back = may_give_back
        statuses = (os.fstat(fd) for kind, _, fd in handed if kind == NAMED)
        self._handed_files = {(status.st_dev, status.st_ino) for status in statuses}

    def memory(self, inherited: InheritedMemory | None = None) -> NodeMemory:
        """Return fresh memory, or the inherited memory."""
        table = self._settings.table
        requested = bool(self._settings.lmcache_port)
        named = None
        if inherited is not None and inherited.has(NAMED):
            named = named_segment.adopted(inherited.pop(NAMED), self.writer, self._may_give_back, requested=requested)
        if named is None and requested:
            named = named_segment.fresh(self._settings, self.writer, self._may_give_back, self._handed_files)
        return NodeMemory(
            self.max_blocks,
            self._made,
            self._dropped,
            self._prefault,
            huge=table.huge_pages,
            ahead_bytes=table.prefault_ahead_bytes,
            private=self.private_sizes,
            inherited=inherited,
            named=named,
        )

    def node(
        self, memory: NodeMemory, recovery_table: RecoveryTable, journal: IdJournal, needed_bytes: int = 0
    ) -> Node:
        """Return a node over memory, with at least the capacity that existing blocks need."""
        table = self._settings.table
        # A grown pool stays as large: otherwise blocks stored before the pool is grown again would cause evictions.
        grown_bytes = recovery_table.highest(B_CAPACITY)
        options = NodeOptions(
            name=self._name,
            epoch=f"{self.writer.epoch:016x}",
            capacity_bytes=max(self._settings.pool_bytes // 4096 * 4096, needed_bytes, grown_bytes),
            segment_bytes=table.segment_bytes,
            reservation_ttl_s=table.reservation_ttl_s,
            pin_budget_ratio=table.pin_budget_ratio,
            hint_max_s=table.hint_max_s,
            gpu_copy_bytes=table.gpu_pool_bytes,
            max_clients=table.max_clients,
            page_bytes=HUGE_BYTES if table.huge_pages else PAGE_BYTES,
            named_bytes=0 if memory.named is None else memory.named.nbytes,
        )
        return Node(options, memory.index, memory, self._leases(), self.clock(), self._emit, recovery_table, journal)


def begin(handed: list[tuple[str, int, int]], factory: CoreFactory) -> Core:
    """Adopt handed-over memory (kind, number, fd), or begin with fresh memory.

    Raises MemoryError, OSError; also if the process that wrote the memory has not ended yet, or this process may not
    open enough descriptors: a later start can adopt it.
    """
    not_adopted = ""
    if handed:
        try:
            return _adopt_memory(handed, factory)
        except OSError as error:
            if error.errno in NOT_NOW:
                raise
            not_adopted = f"{type(error).__name__}: {error}"
            log.exception("memory.not_adopted", effect="the start is cold: nothing is cached")
        except (CannotAdopt, LayoutError, Contradiction, MemoryError) as error:
            not_adopted = str(error)
            log.warning("memory.not_adopted", reason=not_adopted, effect="the start is cold: nothing is cached")
        except Exception as error:  # memory with an unexpected defect must not keep the node down
            not_adopted = f"{type(error).__name__}: {error}"
            log.exception("memory.not_adopted", effect="the start is cold: nothing is cached")
    memory = factory.memory()
    recovery_table = RecoveryTable(memory.view("books"), factory.max_blocks)
    journal = IdJournal(memory.view("names"))
    journal.format()
    recovery_table.format(memory.index.cells[H_MEMORY])
    recovery_table.sign(factory.writer)
    memory.index.format(factory.writer.epoch, factory.writer.pid)
    return Core(memory, factory.node(memory, recovery_table, journal), not_adopted=not_adopted)


def _private_sizes(max_blocks: int) -> dict[str, int]:
    return {"books": recovery_table_bytes(max_blocks), "names": names_bytes(half_bytes_for(max_blocks))}


def segment_bytes(handed: list[tuple[str, int, int]]) -> int:
    """Return the size of the segments of a handover."""
    return sum(os.fstat(fd).st_size for kind, _, fd in handed if kind == "segment")


def why_not(settings: DataPlaneSettings, handed: list[tuple[str, int, int]]) -> str:
    """Return why this release cannot adopt the memory of a handover with these settings; empty if it can. Does not
    write to the memory, and takes ownership of the descriptors."""
    memory = [entry for entry in handed if entry[0] not in SOCKETS]
    for _, _, fd in (entry for entry in handed if entry[0] in SOCKETS):
        os.close(fd)
    if not settings.lmcache_port and any(kind == NAMED for kind, _, _ in memory):
        return "lmcache_port is 0 now, and the memory has blocks of LMCache clients"
    try:
        inherited = InheritedMemory.take(memory)
        try:
            sizes = _private_sizes(settings.max_blocks)
            adopted = NodeMemory(settings.max_blocks, private=sizes, inherited=inherited)
        finally:
            inherited.close()
        try:
            _attach(adopted)
        finally:
            adopted.close()
    except (CannotAdopt, LayoutError, MemoryError) as error:
        return str(error)
    return ""


def _attach(memory: NodeMemory) -> tuple[RecoveryTable, IdJournal, JournalContents]:
    """Attach the private memory of the previous data plane. Raises CannotAdopt, LayoutError."""
    recovery_table = RecoveryTable.attach(memory.view("books"))
    journal, contents = IdJournal.attach(memory.view("names"))
    identity = memory.index.cells[H_MEMORY]
    if not identity or int(recovery_table.header[B_MEMORY]) != identity:
        raise LayoutError("the index and the recovery table belong to different memory")
    if memory.index.cells[H_CLOSED]:
        raise CannotAdopt("the previous data plane released it when it stopped")
    return recovery_table, journal, contents


def _adopt_memory(handed: list[tuple[str, int, int]], factory: CoreFactory) -> Core:
    clock, writer = factory.clock, factory.writer
    started = clock()
    inherited = InheritedMemory.take(handed)
    try:
        memory = factory.memory(inherited)
    finally:
        inherited.close()
    try:
        recovery_table, journal, contents = _attach(memory)
        nbytes = factory.private_sizes["names"]
        if journal.nbytes < nbytes:  # from a release with smaller journals
            log.info("names.migrated", from_bytes=journal.nbytes, to_bytes=nbytes)
            journal = migrated(contents, memory.replaced("names", nbytes))
        _await_end(recovery_table.writer)
        recovery_table.sign(writer)  # this process is the writer now, and no other may adopt the memory while it lives
        index = memory.index
        index.header[H_EPOCH], index.header[H_PID] = writer.epoch, writer.pid
        node, restored = _restore(memory, recovery_table, journal, contents, factory)
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
    return Core(memory, node, restored)


def _restore(
    memory: NodeMemory,
    recovery_table: RecoveryTable,
    journal: IdJournal,
    contents: JournalContents,
    factory: CoreFactory,
) -> tuple[Node, Restored]:
    now, index = factory.clock(), memory.index
    memfds = {number: file.nbytes for number, file in memory.segments.items()}
    named = memory.named if memory.named is not None and memory.named.adopted else None
    segments = surviving_segments(contents, index, memfds, 0 if named is None else named.nbytes)
    needed = sum(nbytes for number, nbytes in segments.items() if number in contents.segments)
    node = factory.node(memory, recovery_table, journal, needed)
    stored = int(index.cold[:, COLD_STORED_AT].max())
    # Blocks that this process stores get later times, even if the clock was set back.
    index.header[H_ADOPTED_NS] = max(int(now * 1e9), stored + 1)
    restored = restore(node, SurvivingMemory(contents, segments, memory.inherited_area, _is_alive), now)
    restored_segments = node.pool.slabs.segments
    memory.inherited_parts(
        (segment.number, segment.base, segment.nbytes)
        for segment in restored_segments.values()
        if segment.base is not None
    )
    for number in memory.segments.keys() - restored_segments.keys():
        memory.retire_segment(number)
    for client in memory.areas.keys() - node.engines.keys():
        memory.retire_area(client)
    if named is None:  # the memory that they mapped is gone
        for engine in [engine for engine in node.engines.values() if engine.gateway]:
            node.detach_cleanly(engine.client, now)
    return node, restored


def _is_alive(engine: EngineName) -> bool:
    if not engine.pid:  # in another pid namespace: invisible, so never proven gone
        return True
    pidfd = open_process(engine.pid, engine.started)
    if pidfd is None:
        return False
    os.close(pidfd)
    return True


def _await_end(writer: TableWriter) -> None:
    """Wait until the process that last wrote the memory is gone. Raises OSError (EBUSY)."""
    if not writer.pid:
        return
    pidfd = open_process(writer.pid, writer.started)
    if pidfd is None:
        return
    try:
        if not has_exited(pidfd, WRITER_ENDS_S):
            raise OSError(errno.EBUSY, f"process {writer.pid} still writes the memory that is held")
    finally:
        os.close(pidfd)
