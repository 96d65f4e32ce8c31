"""Which nodes are asked, and what each of them said."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.errors import LarderError
from app.ingest.fleet import Fleet, Node
from app.push.operations import Operations
from app.schemas.actions import Aimed
from app.services import checks

T = TypeVar("T")


@dataclass(frozen=True)
class Said(Generic[T]):
    """What came of asking one node: an answer, or why there is none."""

    node: Node
    answer: T | None
    error: str | None


class Targets:
    def __init__(self, operations: Operations, fleet: Fleet) -> None:
        self.operations = operations
        self._fleet = fleet

    def named(self, asked: Aimed) -> list[Node]:
        """The nodes that are asked for, by name: one, some, or every one that is known, so that who is away is told and
        not left out. Raises Invalid for a name that is nobody's; NodeUnreachable when none is connected, or not the
        only one that is named."""
        faults = checks.Faults()
        if asked.node is not None and asked.nodes is not None:
            faults.add("nodes", "expected at most one of 'node' and 'nodes'")
        names = [("node", asked.node)] if asked.node is not None else []
        names += [(f"nodes[{at}]", name) for at, name in enumerate(asked.nodes or ())]
        for path, name in names:
            if name not in self._fleet.nodes:
                faults.add(path, f"there is no node {name[:128]!r}")
        faults.stop()
        if not names:
            self.operations.connected()
            return [node for _, node in sorted(self._fleet.nodes.items())]
        found = [self._fleet.nodes[name] for name in sorted({name for _, name in names})]
        if len(found) == 1:
            self.operations.check(found[0])
        return found

    def node(self, name: str) -> Node:
        """Raises NotFound."""
        node = self._fleet.nodes.get(name)
        if node is None:
            raise checks.missing("node", name)
        return node

    def chosen(self, name: str | None) -> list[Node]:
        """One node, or every connected one. Raises NotFound, NodeUnreachable."""
        if name is None:
            return self.operations.connected()
        node = self.node(name)
        self.operations.check(node)
        return [node]

    async def each(self, nodes: Sequence[Node], ask: Callable[[Node], Awaitable[T]]) -> list[Said[T]]:
        """Ask them all at once; who cannot or will not is told apart."""

        async def one(node: Node) -> Said[T]:
            try:
                return Said(node, await ask(node), None)
            except LarderError as error:
                return Said(node, None, error.message)

        return list(await asyncio.gather(*(one(node) for node in nodes)))
