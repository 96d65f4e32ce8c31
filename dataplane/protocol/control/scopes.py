"""Scopes of blocks, and what is done at once to all blocks of a scope."""

from typing import Literal

import msgspec

from dataplane.protocol.message_bases import ReplyOfNode, RequestToNode


class Scope(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Selects the blocks that match every given field; at least one field is required."""

    tenant: str | None = None
    """Salt; '' is the default tenant."""
    model: str | None = None
    """Selects all spaces of a model."""
    space: str | None = None
    """One space, by its identity (32 hex digits)."""
    keys: bytes = b""
    """Packed keys of a prefix: selects its blocks and every block that was stored after its last key."""


class Invalidate(RequestToNode, tag="invalidate"):
    """Make blocks unreadable at once and sweep them in the background; leased blocks are freed when their lease ends.
    Blocks under permanent pins stay. Answered with `Swept`."""

    scope: Scope


class Demote(RequestToNode, tag="demote"):
    """Make blocks the first victims, without dropping them, until they are used again. Answered with `Swept`."""

    scope: Scope


class Clear(RequestToNode, tag="clear"):
    """Invalidate every block. Answered with `Swept`."""

    permanent: bool = False
    """Also invalidate blocks under permanent pins. The pins stay and hold blocks that are stored later."""


class ClearGateway(RequestToNode, tag="clear_gateway"):
    """Invalidate every block in the spaces of one gateway, except blocks under permanent pins. Answered with
    `Swept`."""

    gateway: str
    force: bool = False
    """Also invalidate blocks that are leased or being written now."""


class CountBlocks(RequestToNode, tag="count"):
    """Count the blocks that an invalidation, a demotion or a clear would affect now. Changes nothing. Answered with
    `Counted`."""

    kind: Literal["invalidate", "demote", "clear"]
    scope: Scope
    """Must have no field set if `kind` is `clear`, and only then."""
    permanent: bool = False
    """Whether tiers forget the blocks too, as in `Clear`."""


class Swept(ReplyOfNode, tag="swept"):
    """The blocks of the scope are invalid (or demoted) from now on, also for readers."""

    sweep: int
    """Number of the sweep, as in events and `NodeStats.sweeps`."""
    blocks: int | None = None
    """Blocks in the sweep's scope; null from nodes that do not report it."""
    bytes: int | None = None
    """Bytes stored in those blocks."""


class Counted(ReplyOfNode, tag="counted"):
    """Number of blocks and bytes that a scope matches now."""

    blocks: int
    bytes: int
