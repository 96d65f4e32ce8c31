"""Bodies of `POST /actions/restart`."""

import msgspec


class RestartPost(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of a restart."""

    fresh: bool = False
    """Release the cache: the new data plane process starts with an empty one."""
    dry_run: bool = False
    """Only check whether the new processes would start and keep the cache."""


class RestartAnswer(msgspec.Struct, frozen=True):
    """Result for the data plane. The management plane that answers restarts after it has sent this."""

    instance: str
    """Identity of the management plane that answered; `/healthz` shows another one once the new process answers."""
    release: str
    """Release of the management plane that answered."""
    blocks: int
    """Blocks that were cached before the restart."""
    bytes: int
    kept: bool
    """Whether the new data plane process has these blocks (with `dry_run`: would have them)."""
    reason: str
    """Why the blocks are not kept; empty when they are."""
    data_plane_pid: int | None
    """Process id of the new data plane; null with `dry_run`, or when this management plane starts no data plane."""
    seconds: float | None
    """Seconds from the stop of the old data plane process until the new one served."""
    starts_data_plane: bool = True
    """Whether this management plane starts a data plane, which a restart replaces too."""
