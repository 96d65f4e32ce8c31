"""Numbers of spaces: engines attach with full identities, and all later messages use a small number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.spaces import Space, check_space

MAX_SPACES = 65_536
MAX_GONE = 4096


def _leads(space: Space) -> bool:
    return not (space.rank or space.pipeline_stage or space.kv_group)


class ChunkSizes:
    """Bytes of a chunk in all ranks, pipeline stages and KV groups of a leading space.

    Layouts of stages and groups may differ. A space therefore belongs to the leading space that has its layout, or, if
    there is none, to each leading space that equals it in all but the layout.
    """

    def __init__(self, spaces: Sequence[Space]) -> None:
        led = {_family(space, space.layout) for space in spaces if _leads(space)}
        self._others: dict[tuple[str | int | None, ...], dict[tuple[int, int, int], int]] = {}
        for space in spaces:
            if not _leads(space):
                family = _family(space, space.layout)
                others = self._others.setdefault(family if family in led else _family(space, None), {})
                others[space.rank, space.pipeline_stage, space.kv_group] = space.block_bytes
        self._sums: dict[tuple[str | int | None, ...], tuple[int, int]] = {}

    def of(self, space: Space, nbytes: int) -> int:
        """Return the bytes of a chunk that has `nbytes` in a leading space. Spaces of varying sizes count as equal."""
        family = _family(space, space.layout)
        if family not in self._sums:
            sizes = (self._others.get(_family(space, None), {}) | self._others.get(family, {})).values()
            self._sums[family] = sum(sizes), sum(not size for size in sizes)
        fixed, varying = self._sums[family]
        return nbytes * (1 + varying) + fixed


def _family(space: Space, layout: str | None) -> tuple[str | int | None, ...]:
    return space.model, space.revision, space.dtype, space.world_size, space.gateway, layout


@dataclass(slots=True)
class Spaces:
    """Spaces that have engines or blocks. Numbers are never reused."""

    by_number: dict[int, Space] = field(default_factory=dict)
    version: int = 0
    """Number of changes of `by_number`, and of which spaces have engines."""
    engines: Counter[int] = field(default_factory=Counter)
    """Number of attached engines that use a space."""
    identities: dict[int, bytes] = field(default_factory=dict)
    """The 16 bytes that name each space in tiers (`Space.identity`), by number."""
    by_identity: dict[bytes, int] = field(default_factory=dict)
    """Numbers of the spaces by these names."""
    _by_model: dict[str, list[int]] = field(default_factory=dict)
    _by_gateway: dict[str, set[int]] = field(default_factory=dict)
    _last: int = 0
    _gone: dict[int, Space] = field(default_factory=dict)
    """Recently forgotten spaces, to which hot prefixes and the trace may still refer."""
    _chunk_sizes: tuple[int, ChunkSizes, ChunkSizes] | None = None
    """Version, sizes of chunks in spaces that have engines, and in all spaces."""

    def check(self, space: Space, field_name: str) -> None:
        """Raise ProtocolError when the space is invalid or contradicts one that is already attached."""
        check_space(space, field_name)
        number = self.known(space)
        if number is None:
            if len(self.by_number) >= MAX_SPACES:
                raise ProtocolError(Code.BAD_SPACE, f"expected at most {MAX_SPACES} spaces", field_name)
            return
        attached = self.by_number[number]
        for name, unit in (("block_bytes", "bytes"), ("block_tokens", "tokens")):
            expected, got = getattr(attached, name), getattr(space, name)
            if got != expected:
                raise ProtocolError(
                    Code.SPACE_CONFLICT,
                    f"this space is attached with blocks of {expected} {unit}, got {got}",
                    f"{field_name}.{name}",
                )

    def of_identity(self, identity: bytes) -> Space | None:
        """Return the space with this identity; None if no engine has attached it."""
        number = self.by_identity.get(identity)
        return None if number is None else self.by_number[number]

    def known(self, space: Space) -> int | None:
        """Return the space's number, or None when it has none."""
        return self.by_identity.get(bytes.fromhex(space.identity()))

    def number(self, space: Space) -> int:
        """Return the number of a checked space; assign one on first use."""
        number = self.known(space)
        if number is None:
            self._last += 1
            number = self._last
            self._add(number, space)
        return number

    def restore(self, number: int, space: Space) -> None:
        """Add a space with the number that it had before a restart."""
        self._last = max(self._last, number)
        self._add(number, space)

    def _add(self, number: int, space: Space) -> None:
        self.version += 1
        identity = self.identities[number] = bytes.fromhex(space.identity())
        self.by_identity[identity] = number
        self.by_number[number] = space
        self._by_model.setdefault(space.model, []).append(number)
        if space.gateway:
            self._by_gateway.setdefault(space.gateway, set()).add(number)

    def attached(self, numbers: Iterable[int]) -> None:
        """Note that an engine uses these spaces."""
        for number in numbers:
            self.engines[number] += 1
            self.version += self.engines[number] == 1

    def released(self, numbers: Iterable[int]) -> None:
        """Note that an engine no longer uses these spaces."""
        for number in numbers:
            self.engines[number] -= 1
            if not self.engines[number]:
                del self.engines[number]
                self.version += 1

    def never_below(self, number: int) -> None:
        """Do not assign numbers up to this one."""
        self._last = max(self._last, number)

    def leads(self, number: int) -> bool:
        """Return whether a space has rank, stage and group 0. One request uses all ranks, stages and groups of a model,
        so counts per request use only this space."""
        space = self.by_number.get(number)
        return space is not None and _leads(space)

    def leading(self, numbers: Iterable[int]) -> int:
        """Return the first of these spaces that leads; 0 when none does."""
        return next((number for number in numbers if self.leads(number)), 0)

    def forget(self, number: int) -> None:
        """Forget a space without engines and blocks."""
        self.version += 1
        space = self.by_number.pop(number)
        self._gone[number] = space
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
        del self.by_identity[self.identities.pop(number)]
        numbers = self._by_model[space.model]
        numbers.remove(number)
        if not numbers:
            del self._by_model[space.model]
        if space.gateway:
            self._by_gateway[space.gateway].discard(number)

    def of_model(self, model: str) -> list[int]:
        """Return the numbers of a model's spaces."""
        return self._by_model.get(model, [])

    def named(self, number: int) -> bool:
        """Return whether a space's bytes are in the named segment, which the clients of a gateway map."""
        return bool(self.by_number[number].gateway)

    def of_gateway(self, gateway: str) -> Set[int]:
        """Return the numbers of a gateway's spaces."""
        return self._by_gateway.get(gateway) or frozenset()

    def models(self) -> dict[int, str]:
        """Return models by space number, including those of recently forgotten spaces."""
        return {number: space.model for number, space in (self._gone | self.by_number).items()}

    def declared(self, number: int) -> Space | None:
        """Return a space that has engines or blocks, or was forgotten recently; otherwise None."""
        return self.by_number.get(number) or self._gone.get(number)

    def chunk_bytes(self, space: Space, nbytes: int) -> int:
        """Return the bytes of a chunk in all spaces of a request, of which it has `nbytes` in this leading space. If it
        has engines, spaces without engines are of earlier ones and do not count."""
        if self._chunk_sizes is None or self._chunk_sizes[0] != self.version:
            used = [each for number, each in self.by_number.items() if number in self.engines]
            every = [*self._gone.values(), *self.by_number.values()]
            self._chunk_sizes = self.version, ChunkSizes(used), ChunkSizes(every)
        _, in_use, of_all = self._chunk_sizes
        return (in_use if self.known(space) in self.engines else of_all).of(space, nbytes)

    def model(self, number: int) -> str:
        return self.by_number[number].model
