"""No eviction: a full pool refuses new blocks. For pools that are filled once, and as a baseline."""

from collections.abc import Iterator


class Noop:
    """Policy that tracks its blocks but offers no victims."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: set[int] = set()

    def __len__(self) -> int:
        return len(self._blocks)

    def insert(self, block: int, key: int, size_bytes: int, now: float, hits: int = 0) -> None:
        self._blocks.add(block)

    def touch(self, block: int, now: float) -> None:
        pass

    def refresh(self, block: int, now: float) -> None:
        pass

    def evict(self, block: int, now: float) -> None:
        self._blocks.remove(block)

    def remove(self, block: int) -> None:
        self._blocks.remove(block)

    def victims(self, now: float) -> Iterator[int]:
        return iter(())
