"""Description of a start: warm, cold (with how much was lost, and why), or the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataplane.base.units import format_size
from dataplane.holding.record import boot_id
from dataplane.protocol.stats.processes import CacheStart
from dataplane.recovery.record import CacheRecord

if TYPE_CHECKING:
    from dataplane.recovery.adoption import Core


def cache_start(core: Core, before: CacheRecord | None, now: float, holder_failure: str) -> CacheStart:
    """Return the description of this start. `before` is the record of the previous data plane, and `holder_failure`
    says why the holder did not hand the memory over."""
    restored = core.restored
    if restored is not None:
        return CacheStart("warm", now, blocks=restored.blocks, bytes=restored.bytes, lost_blocks=restored.lost_blocks)
    blocks, nbytes = (0, 0) if before is None else (before.blocks, before.bytes)
    if core.not_adopted:
        reason = f"the memory of the previous data plane could not be adopted: {core.not_adopted}"
        return CacheStart("cold", now, reason, lost_blocks=blocks, lost_bytes=nbytes)
    if holder_failure:
        return CacheStart("cold", now, holder_failure, lost_blocks=blocks, lost_bytes=nbytes)
    if before is not None and before.reason:
        return CacheStart("cold", now, before.reason, before.on_purpose, lost_blocks=blocks, lost_bytes=nbytes)
    if before is None or not before.blocks:
        return CacheStart("first", now)
    if before.boot and before.boot != boot_id():
        reason = "the machine was restarted"
    else:
        reason = "the holder of the memory ended, too"
    return CacheStart("cold", now, reason, lost_blocks=blocks, lost_bytes=nbytes)


def status(start: CacheStart) -> str:
    """Return one line about a start, for the status of the service."""
    if start.kind == "warm":
        return f"Serving; kept {start.blocks} blocks ({format_size(start.bytes)}) of the previous data plane"
    return f"Serving; the start was cold: {start.reason}" if start.kind == "cold" else "Serving"
