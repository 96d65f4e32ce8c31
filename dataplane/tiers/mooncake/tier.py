"""The tier `mooncake`: `dataplane.tiers.tier.Tier` over Mooncake Store.

Calls of Mooncake's client cannot be cancelled, and use their memory until they return, so the deadline is checked
before each block. Mooncake cannot list keys. Therefore, the tier lists only the blocks that it wrote since it was
opened; Mooncake evicts the blocks of an earlier process.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from threading import Lock
from typing import Any, TypeVar

from mooncake.store import MooncakeDistributedStore

from dataplane.protocol.stored_blocks import BlockName, Loaded, Outcome, StoredBlock
from dataplane.tiers.header import HEADER_BYTES
from dataplane.tiers.mooncake.parameters import MooncakeParameters
from dataplane.tiers.registry import TierContext
from dataplane.tiers.shared import SharedTier
from dataplane.tiers.tier import BlockLoad, BlockStore, TierError, TierHealth
from dataplane.tiers.values import packed_header, read_header, value_name, value_size, verify

T = TypeVar("T")
R = TypeVar("R")
_MISSING = -704
_FULL = -200
_UNREACHABLE = -900


class MooncakeTier(SharedTier):
    """Blocks in Mooncake Store. See `Tier` for the methods."""

    def __init__(self, parameters: MooncakeParameters, context: TierContext) -> None:
        """Connect to the master. Raises TierError."""
        super().__init__(context)
        self._address = f"Mooncake master {parameters.master}"
        self._blocks: dict[BlockName, StoredBlock] = {}
        self._lock = Lock()
        self._objects: Any = MooncakeDistributedStore()
        result = self._objects.setup(
            parameters.hostname,
            parameters.metadata,
            parameters.segment_bytes,
            parameters.buffer_bytes,
            parameters.protocol,
            parameters.devices,
            parameters.master,
        )
        if result:
            raise TierError(f"{self._address}: cannot connect (error {result})")

    def lookup(self, names: Sequence[BlockName], deadline: float) -> list[StoredBlock | None]:
        def look(name: BlockName) -> StoredBlock | None:
            value = self._get(name)
            return None if value is None else read_header(value[:HEADER_BYTES], self._cluster, name)

        return self._call_each(names, deadline, look, None)

    def store(self, stores: Sequence[BlockStore], deadline: float) -> list[Outcome]:
        self._opened()
        return super().store(stores, deadline)

    def _store(self, stores: Sequence[BlockStore], deadline: float) -> list[Outcome]:
        return self._call_each(stores, deadline, self._put, Outcome.LATE)

    def _put(self, store: BlockStore) -> Outcome:
        block, size = store.block, value_size(store.block.length)
        header = packed_header(store, self._cluster)
        if header is None:
            return Outcome.FAILED
        if not self._written.reserve(block.name, size):
            return Outcome.FULL
        result = _UNREACHABLE
        try:
            data = memoryview(store.data).cast("B")
            result = self._opened().upsert_parts(self._key(block.name), header, data)
        finally:
            if result:
                self._written.cancel(size)
        self._check(result)
        if result:
            return Outcome.FULL if result == _FULL else Outcome.FAILED
        self._written.commit(block.name, size)
        with self._lock:
            self._blocks[block.name] = block
        return Outcome.OK

    def load(self, loads: Sequence[BlockLoad], deadline: float) -> list[Loaded]:
        commits = self._written.commits()
        loaded = self._call_each(loads, deadline, self._load, Loaded(Outcome.LATE))
        self._count_loads([load.name for load in loads], [result.outcome for result in loaded], commits, deadline)
        return loaded

    def _load(self, load: BlockLoad) -> Loaded:
        value = self._get(load.name)
        if value is None:
            return Loaded(Outcome.MISSING)
        into = load.into.cast("B")
        if len(value) != value_size(len(into)):
            return Loaded(Outcome.CORRUPT)
        into[:] = value[HEADER_BYTES:]
        block = verify(value[:HEADER_BYTES], into, self._cluster, load.name)
        return Loaded(Outcome.CORRUPT) if block is None else Loaded(Outcome.OK, block)

    def delete(self, names: Sequence[BlockName], deadline: float) -> list[Outcome]:
        self._opened()
        return super().delete(names, deadline)

    def _delete(self, names: Sequence[BlockName], deadline: float) -> list[Outcome]:
        return self._call_each(names, deadline, self._remove, Outcome.LATE)

    def _remove(self, name: BlockName) -> Outcome:
        result = self._opened().remove(self._key(name), True)  # also if the block was read recently
        self._check(result)
        if result not in (0, _MISSING):
            return Outcome.FAILED
        self._written.remove(name)  # at once, because the call for the next block may fail
        with self._lock:
            self._blocks.pop(name, None)
        return Outcome.OK

    def blocks(self, deadline: float = inf) -> Iterator[StoredBlock]:
        self._opened()
        with self._lock:
            listed = list(self._blocks.values())
        return iter(listed)

    def health(self, deadline: float) -> TierHealth:
        try:
            self._check(self._opened().is_exist("larder/health"))
        except TierError as error:
            return TierHealth(ok=False, reason=str(error))
        return TierHealth(ok=True)

    def close(self) -> None:
        store, self._objects = self._objects, None
        if store is not None:
            store.close()

    def _key(self, name: BlockName) -> str:
        return value_name(self._cluster, name)

    def _get(self, name: BlockName) -> memoryview | None:
        """Return a value, or None if the store does not have it. Raises TierError."""
        store = self._opened()
        handle = store.get_buffer(self._key(name))
        if handle is None:
            self._check(store.is_exist(self._key(name)))
            return None
        return memoryview(handle).cast("B")

    def _opened(self) -> Any:
        if self._objects is None:
            raise TierError(f"{self._address}: the tier is closed")
        return self._objects

    def _check(self, result: int) -> None:
        """Raise TierError if the result of a call means that the master does not answer."""
        if result <= _UNREACHABLE:
            raise TierError(f"{self._address}: no answer (error {result})")

    def _call_each(self, items: Sequence[T], deadline: float, call: Callable[[T], R], late: R) -> list[R]:
        """Call for each item until the deadline. Raises TierError."""
        self._opened()
        return [late if time.monotonic() >= deadline else call(item) for item in items]
