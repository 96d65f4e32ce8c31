"""Moves of blocks between memory and tiers, and blocks that are encoded again."""

import msgspec

from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.message_bases import ReplyOfNode, RequestToNode
from dataplane.protocol.tiers import MEMORY

MAX_MOVE_S = 86_400.0
"""Longest deadline of a move."""


class Move(RequestToNode, tag="move", omit_defaults=True):
    """Copy blocks from memory or a tier to a tier, or load blocks from tiers into memory, in the background. Answered
    with `Moved`."""

    scope: Scope
    """At least one field is required."""
    tier: str
    """Name of a tier of the node, or `memory`."""
    release: bool = False
    """Remove each block from where it was copied from once the tier holds it, unless a guaranteed or a permanent pin
    holds the block. Blocks in memory that are leased are removed when their lease ends."""
    deadline_s: float = 300.0
    """Seconds after which blocks that have not been moved stay where they are; at most MAX_MOVE_S."""
    dry_run: bool = False
    """Only count the blocks."""
    source: str = MEMORY
    """Name of the tier to copy blocks from, or `memory`. It must be `memory` if `tier` is."""
    compress: bool = False
    """Instead of moving blocks, encode blocks of the tier again, as its record says. The scope may be empty."""


class ReadMove(RequestToNode, tag="read_move"):
    """Ask for the progress of a move. Answered with `Moved`."""

    number: int


class CancelMove(RequestToNode, tag="cancel_move"):
    """Cancel a move. Copies and loads under way still end, and the move ends then. Answered with `Moved`."""

    number: int


class MoveState(msgspec.Struct):
    """Progress of a move."""

    number: int
    """Number of the move, as in the event `move.ended`."""
    tier: str
    """Name of the tier, or `memory`."""
    blocks: int = 0
    """Blocks in the scope when the move began; 0 while blocks of tiers are being selected."""
    bytes: int = 0
    moved_blocks: int = 0
    """Blocks that were copied to the tier, or loaded into memory."""
    moved_bytes: int = 0
    present_blocks: int = 0
    """Blocks that the tier, or memory, held already."""
    released_blocks: int = 0
    """Blocks that were removed from memory, or from the tier `source`."""
    released_bytes: int = 0
    refused: dict[str, int] = {}
    """Blocks that were not moved, or not removed from where they were, by reason."""
    started_at: float = 0.0
    ended_at: float | None = None
    dry_run: bool = False
    source: str = MEMORY
    """Name of the tier that blocks are copied from, or `memory`. It is `memory` for a move to memory, too."""
    tenant: str | None = None
    """Salt of the tenant whose blocks are moved; None for all tenants, and from nodes of older releases."""
    cancelled: bool = False
    """Whether it was cancelled before it ended."""

    def refuse(self, reason: str, blocks: int = 1) -> None:
        """Count blocks that were not moved."""
        if blocks:
            self.refused[reason] = self.refused.get(reason, 0) + blocks


class Moved(ReplyOfNode, tag="moved"):
    state: MoveState
