"""Check the data structures of a node for consistency with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dataplane.core.blocks.blocks import Block
from dataplane.protocol.layout import HOT_NBYTES
from dataplane.protocol.states import State

if TYPE_CHECKING:
    from dataplane.core.pool.pool import Pool


def contradictions(pool: Pool) -> list[str]:
    """Return a sentence for each inconsistency; empty if there are none. O(blocks), so only for audits."""
    blocks = list(pool.table.blocks.values())
    return [*_charges(pool, blocks), *_order(pool, blocks), *_rows(pool, blocks)]


def _charges(pool: Pool, blocks: list[Block]) -> list[str]:
    faults = []
    charges = sum(block.charge for block in blocks)
    by_tenant = sum(tenant.bytes for tenant in pool.tenants.by_salt.values())
    by_account = sum(account.bytes for account in pool.order.accounts())
    if not charges == by_tenant == by_account == pool.used_bytes:
        faults.append(f"bytes: blocks {charges}, tenants {by_tenant}, accounts {by_account}, pool {pool.used_bytes}")
    used = sum(account.bytes for account in pool.usage.accounts())
    if used != charges:
        faults.append(f"bytes: blocks {charges}, usage {used}")
    pinned = sum(block.charge for block in blocks if block in pool.pins.guaranteed)
    if pinned != pool.pins.pinned_bytes:
        faults.append(f"pinned bytes: blocks {pinned}, pins {pool.pins.pinned_bytes}")
    hinted = sum(block.charge for block, hint in pool.hints.hinted.items() if hint.pinned_until)
    by_tenant = sum(tenant.hinted_bytes for tenant in pool.tenants.by_salt.values())
    by_account = sum(account.hinted_bytes for account in pool.order.accounts())
    if not hinted == by_tenant == by_account == pool.hints.pinned_bytes:
        faults.append(
            f"hinted bytes: blocks {hinted}, tenants {by_tenant}, accounts {by_account}, pool {pool.hints.pinned_bytes}"
        )
    slots = {(block.slot.slab.segment.number, block.slot.offset) for block in blocks}
    if len(slots) != len(blocks):
        faults.append("two blocks share a slot")
    return faults


def _order(pool: Pool, blocks: list[Block]) -> list[str]:
    faults = []
    evictable = sum(
        block.state is State.READY and block not in pool.pins.guaranteed and block not in pool.dead for block in blocks
    )
    queued = sum(block.queue is not None for block in blocks)
    if not evictable == queued == len(pool.order):
        faults.append(
            f"eviction queues hold {len(pool.order)} blocks, {queued} blocks name one, {evictable} may be evicted"
        )
    misplaced = sum(block.queue is not None and block.queue is not block.tenant.account.queue for block in blocks)
    if misplaced:
        faults.append(f"{misplaced} blocks are in the eviction queue of another account")
    if any(block.entry is not None for block in pool.dead):
        faults.append("a dead block is in the index")
    noted = (*pool.dead, *pool.pins.marked, *pool.pins.guaranteed, *pool.hints.hinted)
    if any(pool.table.blocks.get(block.number) is not block for block in noted):
        faults.append("a block that is gone is dead, pinned or hinted")
    return faults


def _rows(pool: Pool, blocks: list[Block]) -> list[str]:
    faults = []
    memory = pool.table.memory
    live = np.flatnonzero(memory.control & np.uint64(0xFF))
    if len(live) != len(blocks):
        faults.append(f"{len(live)} descriptors are not FREE, {len(blocks)} blocks are known")
    described = int(memory.hot[live, HOT_NBYTES].sum())
    block_bytes = sum(block.nbytes for block in blocks)
    unpadded = pool.used_bytes - pool.padding_bytes
    if not described == block_bytes == unpadded:
        faults.append(f"block bytes: descriptors {described}, blocks {block_bytes}, pool without padding {unpadded}")
    entries = int(np.count_nonzero(memory.entries))
    listed = sum(block.entry is not None for block in blocks)
    if entries != listed:
        faults.append(f"index holds {entries} entries, {listed} blocks are listed")
    return faults
