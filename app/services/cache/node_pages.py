"""Pages of a list that each node has a part of, read node by node. A page takes a bounded number of requests."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from app.errors import Invalid, LarderError
from app.ingest.fleet import FleetNode
from app.schemas.records.prefixes import NodeError
from app.store.base import cursors

MAX_QUESTIONS = 64
"""Largest number of requests to nodes per page."""
MAX_CURSOR = (1 << 62) - 1
T = TypeVar("T")
ReadPart = Callable[[FleetNode, int, int], Awaitable[tuple[list[T], int]]]
"""Ask a node for items after a position, at most so many. Return them, and the position after them, 0 at the end.
Raises LarderError."""


@dataclass(frozen=True)
class NodePage(Generic[T]):
    """A page of items as nodes report them, each with its node's name."""

    items: list[tuple[str, T]]
    next_cursor: str
    failed_nodes: list[NodeError]


class _Cursor(msgspec.Struct, array_like=True):
    node: str
    after: int


async def page_of(nodes: Sequence[FleetNode], limit: int, cursor: str, read: ReadPart[T]) -> NodePage[T]:
    """Return a page of the items of nodes (sorted by name). Raises Invalid."""
    at = _read(cursor)
    items: list[tuple[str, T]] = []
    failed_nodes: list[NodeError] = []
    questions = 0
    for node in nodes:
        if node.name < at.node:
            continue
        after = at.after if node.name == at.node else 0
        while True:
            if len(items) >= limit or questions >= MAX_QUESTIONS:
                return NodePage(items, cursors.write(_Cursor(node.name, after)), failed_nodes)
            questions += 1
            try:
                part, following = await read(node, after, limit - len(items))
            except LarderError as error:
                failed_nodes.append(NodeError(node.name, error.message))
                break
            items += [(node.name, item) for item in part]
            if following <= after:
                break
            after = following
    return NodePage(items, "", failed_nodes)


def _read(text: str) -> _Cursor:
    """Return the parsed cursor. Raises Invalid."""
    if not text:
        return _Cursor("", 0)
    try:
        cursor = cursors.read(text, _Cursor)
        if 0 <= cursor.after <= MAX_CURSOR:
            return cursor
    except cursors.CursorError:
        pass
    raise Invalid.at("cursor", "expected next_cursor of a page of this list")
