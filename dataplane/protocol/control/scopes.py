"""Scopes of blocks, and what is done at once to all blocks of a scope."""

from typing import Literal

import msgspec


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


class Invalidate(msgspec.Struct, tag_field="op", tag="invalidate", forbid_unknown_fields=True):
    """Make blocks unreadable at once and sweep them in the background; leased blocks are freed when their lease ends.
    Blocks under permanent pins stay. Answered with `Swept`."""

    nonce: str
    scope: Scope


class Demote(msgspec.Struct, tag_field="op", tag="demote", forbid_unknown_fields=True):
    """Make blocks the first victims, without dropping them, until they are used again. Answered with `Swept`."""

    nonce: str
    scope: Scope


class Clear(msgspec.Struct, tag_field="op", tag="clear", forbid_unknown_fields=True):
    """Invalidate every block. Answered with `Swept`."""

    nonce: str
    permanent: bool = False
    """Also invalidate blocks under permanent pins. The pins stay and hold blocks that are stored later."""


class ClearGateway(msgspec.Struct, tag_field="op", tag="clear_gateway", forbid_unknown_fields=True):
    """Invalidate every block in the spaces of one gateway, except blocks under permanent pins. Answered with
    `Swept`."""

    nonce: str
    gateway: str
    force: bool = False
    """Also invalidate blocks that are leased or being written now."""


class CountBlocks(msgspec.Struct, tag_field="op", tag="count", forbid_unknown_fields=True):
    """Count the blocks that an invalidation, a demotion or a clear would affect now. Changes nothing. Answered with
    `Counted`."""

    nonce: str
    kind: Literal["invalidate", "demote", "clear"]
    scope: Scope
    """Must have no field set if `kind` is `clear`, and only then."""
    permanent: bool = False
    """Whether tiers forget the blocks too, as in `Clear`."""


class Swept(msgspec.Struct, tag_field="op", tag="swept"):
    """The blocks of the scope are invalid (or demoted) from now on, also for readers."""

    nonce: str
    sweep: int
    """Number of the sweep, as in events and `NodeStats.sweeps`."""
    blocks: int | None = None
    """Blocks in the sweep's scope; null from nodes that do not report it."""
    bytes: int | None = None
    """Bytes stored in those blocks."""


class Counted(msgspec.Struct, tag_field="op", tag="counted"):
    """Number of blocks and bytes that a scope matches now."""

    nonce: str
    blocks: int
    bytes: int
