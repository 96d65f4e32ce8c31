"""The tier `s3`: `dataplane.tiers.tier.Tier` over object storage."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil, inf

import msgspec

from dataplane.protocol.stored_blocks import BlockName, Loaded, Outcome, StoredBlock
from dataplane.tiers.codecs.decoding import fill
from dataplane.tiers.header import HEADER_BYTES
from dataplane.tiers.registry import TierContext
from dataplane.tiers.s3.client import ObjectClient
from dataplane.tiers.s3.messages import StoreRequestDone, StoreRequestFailed
from dataplane.tiers.s3.parameters import S3Parameters
from dataplane.tiers.s3.worker_process import PendingRequest
from dataplane.tiers.shared import SharedTier
from dataplane.tiers.tier import BlockLoad, BlockStore, TierError, TierHealth
from dataplane.tiers.values import packed_header, read_header, value_name, value_prefix, value_size

_MAX_DELETES = 1000
_PAGE_OBJECTS = 1000
_LIST_TIMEOUT_S = 30.0
_LAST = "\u0080"
"""Comes behind all digits, and behind all characters that the library refuses."""


class S3Tier(SharedTier):
    """Blocks in object storage. See `Tier` for the methods."""

    def __init__(self, parameters: S3Parameters, context: TierContext) -> None:
        """Create the tier. The first call connects to the store."""
        super().__init__(context)
        self._prefix = value_prefix(context.cluster)
        self._max_in_flight_bytes = parameters.max_in_flight_bytes
        self._range_bytes = parameters.range_bytes
        self._client = ObjectClient(parameters)

    def lookup(self, names: Sequence[BlockName], deadline: float) -> list[StoredBlock | None]:
        blocks, _ = self._headers(names, deadline)
        return [block and msgspec.structs.replace(block, encoding=None) for block in blocks]

    def _headers(self, names: Sequence[BlockName], deadline: float) -> tuple[list[StoredBlock | None], list[Outcome]]:
        """Return the blocks with their encodings, and the outcomes of the requests."""
        blocks: list[StoredBlock | None] = [None] * len(names)

        def start(number: int) -> PendingRequest:
            return self._client.get(self._path(names[number]), HEADER_BYTES, HEADER_BYTES)

        def finish(number: int, value: memoryview) -> Outcome:
            blocks[number] = read_header(bytes(value), self._cluster, names[number], may_encode=True)
            return Outcome.OK if blocks[number] else Outcome.CORRUPT

        return blocks, self._run([HEADER_BYTES] * len(names), start, finish, deadline)

    def _store(self, stores: Sequence[BlockStore], deadline: float) -> list[Outcome]:
        outcomes = [Outcome.FAILED] * len(stores)
        sizes = [value_size(memoryview(store.data).nbytes) for store in stores]
        admitted: list[tuple[int, bytes]] = []
        for number, store in enumerate(stores):
            header = packed_header(store, self._cluster)
            if header is None:
                continue
            if self._written.reserve(store.block.name, sizes[number]):
                admitted.append((number, header))
            else:
                outcomes[number] = Outcome.FULL

        def start(position: int) -> PendingRequest:
            number, header = admitted[position]
            store = stores[number]
            return self._client.put(self._path(store.block.name), [header, memoryview(store.data).cast("B")])

        def finish(position: int, value: memoryview) -> Outcome:
            outcomes[admitted[position][0]] = Outcome.OK
            return Outcome.OK

        try:
            results = self._run([sizes[number] for number, _ in admitted], start, finish, deadline)
        finally:
            for number, _ in admitted:
                if outcomes[number] is Outcome.OK:
                    self._written.commit(stores[number].block.name, sizes[number])
                else:
                    self._written.cancel(sizes[number])
        for (number, _), outcome in zip(admitted, results, strict=True):
            # A store has no object that could be missing or corrupt.
            outcomes[number] = outcome if outcome in _STORE_OUTCOMES else Outcome.FAILED
        return outcomes

    def load(self, loads: Sequence[BlockLoad], deadline: float) -> list[Loaded]:
        commits = self._written.commits()
        blocks: list[StoredBlock | None] = [None] * len(loads)
        sizes = [value_size(load.into.nbytes) for load in loads]

        def start(number: int) -> PendingRequest:
            size = sizes[number]
            ranges = max(1, ceil((size - HEADER_BYTES) / self._range_bytes))
            return self._client.get(self._path(loads[number].name), size, ceil(size / ranges))

        def finish(number: int, value: memoryview) -> Outcome:
            name, into = loads[number]
            header, data = bytes(value[:HEADER_BYTES]), value[HEADER_BYTES:]
            blocks[number] = fill(header, data, into.cast("B"), self._cluster, name)
            return Outcome.OK if blocks[number] else Outcome.CORRUPT

        outcomes = self._run(sizes, start, finish, deadline)
        self._count_loads([load.name for load in loads], outcomes, commits, deadline)
        return [Loaded(outcome, block) for outcome, block in zip(outcomes, blocks, strict=True)]

    def _delete(self, names: Sequence[BlockName], deadline: float) -> list[Outcome]:
        groups = [names[first : first + _MAX_DELETES] for first in range(0, len(names), _MAX_DELETES)]

        def start(number: int) -> PendingRequest:
            return self._client.delete([self._path(name) for name in groups[number]])

        outcomes: list[Outcome] = []
        results = self._run([HEADER_BYTES] * len(groups), start, lambda number, value: Outcome.OK, deadline)
        for group, outcome in zip(groups, results, strict=True):
            outcomes += [Outcome.OK if outcome is Outcome.MISSING else outcome] * len(group)
        return outcomes

    def blocks(self, deadline: float = inf) -> Iterator[StoredBlock]:
        self._written.begin_listing()
        refusals: list[str] = []
        for objects in self._objects(self._prefix, deadline, refusals):
            sizes: dict[BlockName, int] = {}
            for path, size in objects:
                name = self._named(path)
                if name is not None and size >= HEADER_BYTES:
                    sizes[name] = size
                elif name is not None:
                    self._written.foreign(path.removeprefix(self._prefix))
            until = min(deadline, time.monotonic() + _LIST_TIMEOUT_S)
            read = partial(self._listed_headers, sizes, until)
            yield from self._written.listed(list(sizes), read, self._writer, until)
        if refusals:
            raise TierError(
                f"{self._client.address}: up to 999 objects that the server lists with {refusals[0]!r} cannot be seen: "
                "delete that object"
            )

    def _objects(self, folder: str, deadline: float, refusals: list[str]) -> Iterator[list[tuple[str, int]]]:
        """Iterate over pages of the objects of a folder whose names begin as hexadecimal digits do.

        A path that the library refuses hides the objects that the server lists in the same response. Therefore, the
        list begins behind paths that continue with `/`, `.` or a control character, and the folder of a space with such
        paths is listed by itself. Paths that may hide blocks all the same are added to `refusals`.
        """
        after = f"{folder}0"
        while True:
            reply = self._page(folder, after, _PAGE_OBJECTS, min(deadline, time.monotonic() + _LIST_TIMEOUT_S))
            before = after
            for path, _ in reply.objects:
                if path <= after:
                    raise TierError(f"{self._client.address}: the list of objects repeats, or is not in order")
                after = path
            if reply.objects:
                yield reply.objects
            elif not reply.unreadable:
                return
            else:
                refused = self._path_in_list(reply.unreadable)
                self._written.foreign(refused.removeprefix(self._prefix))
                inner = _folder_of(folder, refused)
                if re.match(re.escape(self._prefix) + r"[^0-9a-f\x7f]", refused) is None:
                    refusals.append(refused)
                if inner is None:
                    after = _behind(folder, refused)
                else:
                    yield from self._objects(inner, deadline, refusals)
                    after = f"{inner}{_LAST}"
                if after <= before:
                    raise TierError(f"{self._client.address}: the list of objects repeats, or is not in order")

    def _path_in_list(self, refused: str) -> str:
        """Return a refused path as paths of the list are, without the prefix of the bucket's URL."""
        at = refused.find(self._prefix)
        if at < 0:
            raise TierError(f"{self._client.address}: the list of objects cannot be read")
        return refused[at:]

    def _listed_headers(
        self, sizes: Mapping[BlockName, int], deadline: float
    ) -> tuple[list[StoredBlock | None], list[Outcome]]:
        """Return the same as `_headers`. An object of another size than its header states is not a block, whatever the
        header claims."""
        blocks, outcomes = self._headers(list(sizes), deadline)
        for number, (block, size) in enumerate(zip(blocks, sizes.values(), strict=True)):
            if block is not None and size != value_size(block.stored_bytes):
                blocks[number], outcomes[number] = None, Outcome.CORRUPT
        return blocks, outcomes

    def health(self, deadline: float) -> TierHealth:
        try:
            self._page(self._prefix, "", 1, deadline)
        except TierError as error:
            return TierHealth(ok=False, reason=str(error))
        return TierHealth(ok=True)

    def close(self) -> None:
        self._client.close()

    def _path(self, name: BlockName) -> str:
        return value_name(self._cluster, name)

    def _page(self, folder: str, after: str, size: int, deadline: float) -> StoreRequestDone:
        """Return at most `size` paths of the list of a folder with the bytes of their objects, from the first path
        after `after`. Raises TierError."""
        try:
            with self._client.list_page(folder, after, size) as request:
                return request.reply(deadline)
        except TimeoutError:
            raise TierError(f"{self._client.address}: no answer by the deadline") from None
        except StoreRequestFailed as error:
            self._client.fault(error)
            raise TierError(f"{self._client.address}: the list of objects cannot be read") from None

    def _run(
        self,
        sizes: Sequence[int],
        start: Callable[[int], PendingRequest],
        finish: Callable[[int, memoryview], Outcome],
        deadline: float,
    ) -> list[Outcome]:
        """Make a request for each block of these sizes, as many at once as `max_in_flight_bytes` allows.

        `start` makes the request for the block with a number; `finish` processes its result. Raises TierError.
        """
        outcomes = [Outcome.LATE] * len(sizes)
        running: deque[PendingRequest] = deque()
        in_flight = started = 0
        try:
            for number in range(len(sizes)):
                while started < len(sizes) and (
                    started == number or in_flight + sizes[started] <= self._max_in_flight_bytes
                ):
                    if time.monotonic() >= deadline:
                        break
                    running.append(start(started))
                    in_flight += sizes[started]
                    started += 1
                if not running:
                    break
                outcomes[number] = self._outcome(number, running.popleft(), finish, deadline)
                in_flight -= sizes[number]
        finally:
            for request in running:
                request.release()
        return outcomes

    def _outcome(
        self, number: int, request: PendingRequest, finish: Callable[[int, memoryview], Outcome], deadline: float
    ) -> Outcome:
        """Wait for a request. Raises TierError."""
        try:
            with request:
                done = request.reply(deadline)
                return finish(number, request.memory[: done.size])
        except TimeoutError:
            return Outcome.LATE
        except StoreRequestFailed as error:
            return self._client.fault(error).outcome


def _folder_of(folder: str, path: str) -> str | None:
    """Return the folder of a space below `folder` that has the path, or None."""
    inner = re.match(re.escape(folder) + r"[0-9a-f]{32}/", path)
    return None if inner is None else inner[0]


def _behind(folder: str, path: str) -> str:
    """Return a path that the library takes and that is behind one that it refuses, and before each name of a block that
    is behind that one."""
    sane = re.match(re.escape(folder) + r"[^/\x00-\x1f\x7f]*", path)
    sane_text = folder if sane is None else sane[0]
    following = path[len(sane_text) : len(sane_text) + 1]
    return sane_text + (_LAST if following == "\x7f" else "0")


_STORE_OUTCOMES = frozenset({Outcome.OK, Outcome.FULL, Outcome.LATE, Outcome.FAILED})
