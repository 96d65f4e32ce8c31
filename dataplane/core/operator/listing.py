"""List cached blocks for operators, and look up chains as an engine would, without attaching to the node.

Listings come in pages that each cover a bounded number of descriptors. Descriptors never move, so a descriptor number
serves as the cursor: a block that stays throughout the listing is listed exactly once.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from dataplane.core.blocks.blocks import Block
from dataplane.core.journal.recovery_table import ROW_TENANT_OWNER
from dataplane.core.operator.scopes import spaces_of
from dataplane.core.packed_keys import check_keys
from dataplane.core.pool.lineage import among
from dataplane.core.pool.pins import strongest
from dataplane.core.pool.pool import Pool
from dataplane.protocol.checksums import NONE
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.lookups import MAX_LISTED_BLOCKS, CachedBlock, ListBlocks, LookupChain, SpaceHits
from dataplane.protocol.keys import split_keys
from dataplane.protocol.layout import COLD_CHECKSUM, COLD_TENANT, HOT_KEY, HOT_SPACE_SEGMENT, I64, U64, leading
from dataplane.protocol.salts import check_salt
from dataplane.protocol.spaces import MAX_NAME_CHARACTERS, Space
from dataplane.protocol.states import STATE_MASK, State

LOOKED_AT = 32_768
"""Maximum number of descriptors that one message examines."""
MAX_PINS_SHOWN = 8
MAX_LOOKED_UP = 16_384
"""Maximum number of keys times spaces that one message looks up; at least one space is always looked up."""
MAX_SPACES = 512
"""Maximum number of spaces in one answer of a look-up."""
L1 = "l1"
_LOW32 = np.uint64(0xFFFFFFFF)
_STATE = np.uint64(STATE_MASK)


def list_blocks(pool: Pool, message: ListBlocks) -> tuple[list[CachedBlock], int]:
    """Return the next blocks and the cursor of the next page (0: no more). Raise ProtocolError on failure."""
    if not 1 <= message.limit <= MAX_LISTED_BLOCKS:
        raise ProtocolError(Code.BAD_FIELD, f"expected 1 to {MAX_LISTED_BLOCKS}, got {message.limit}", "limit")
    last = min(pool.table.max_blocks, message.after + LOOKED_AT)
    numbers = _matching(pool, message, message.after, last)
    following = last if last < pool.table.max_blocks else 0
    if len(numbers) > message.limit:
        numbers = numbers[: message.limit]
        following = int(numbers[-1]) + 1
    lease_counts = pool.leases.counts(numbers, pool.table.space_of[numbers])
    chosen = [pool.table.blocks[number] for number in numbers.tolist()]
    spaces = {number: pool.spaces.by_number[number] for number in {block.space for block in chosen}}
    identities = {number: space.identity() for number, space in spaces.items()}
    blocks = [
        _described(pool, block, spaces[block.space], identities[block.space], count)
        for block, count in zip(chosen, lease_counts, strict=True)
    ]
    return blocks, following


def _matching(pool: Pool, message: ListBlocks, first: int, last: int) -> I64:
    """Return the descriptors in [`first`, `last`) that are not FREE and match the message's filters."""
    hot = pool.table.memory.hot[first:last]
    chosen = (pool.table.memory.control[first:last] & _STATE) != 0
    if message.tenant is not None:
        check_salt(message.tenant)
        tenant = pool.tenants.by_salt.get(message.tenant)
        number = 0 if tenant is None else tenant.number
        chosen &= (pool.table.recovery_table.rows[first:last, ROW_TENANT_OWNER] & _LOW32) == np.uint64(number)
    spaces = spaces_of(pool, message.model, message.space)
    if spaces is not None:
        chosen &= np.isin(hot[:, HOT_SPACE_SEGMENT] & _LOW32, np.array(sorted(spaces), np.uint64))
    if message.gateway is not None:
        served = [number for number, space in pool.spaces.by_number.items() if space.gateway == message.gateway]
        chosen &= np.isin(hot[:, HOT_SPACE_SEGMENT] & _LOW32, np.array(served, np.uint64))
    if message.keys:
        check_keys(message.keys)
        chosen &= among(hot[:, HOT_KEY : HOT_KEY + 4], split_keys(message.keys))
    return np.flatnonzero(chosen) + first


def _described(pool: Pool, block: Block, space: Space, identity: str, leases: int) -> CachedBlock:
    bundles = pool.pins.marked.get(block, ())
    pins = [pin.name for bundle in bundles for pin in islice(bundle.pins, MAX_PINS_SHOWN)]
    state = block.state
    stored_checksum = pool.table.memory.cold[block.number, COLD_CHECKSUM : COLD_CHECKSUM + 2].tobytes()
    ready = state is State.READY
    return CachedBlock(
        key=block.key.hex(),
        tenant=block.tenant.salt,
        model=space.model,
        space=identity,
        tier=L1,
        state="invalidated" if ready and (block in pool.dead or pool.invalid(block)) else state.name.lower(),
        bytes=block.nbytes,
        charged_bytes=block.charge,
        leases=leases,
        pins=pins[:MAX_PINS_SHOWN],
        strength=strongest({bundle.strength for bundle in bundles}) if bundles else "",
        guaranteed=block in pool.pins.guaranteed,
        stored_at=block.timestamp / 1e9,
        used_at=block.used_at,
        hits=block.hits,
        checksum=stored_checksum.hex() if ready and stored_checksum != NONE else "",
        parent=block.parent.hex(),
        descriptor=block.number,
        segment=block.slot.slab.segment.number,
        offset=block.slot.offset,
        kv_group=space.kv_group,
        world_size=space.world_size,
        rank=space.rank,
    )


def look_up(pool: Pool, message: LookupChain) -> tuple[list[SpaceHits], int]:
    """Return hits in the next spaces of a model and the cursor of the next page (0: no more).

    Raise ProtocolError on failure.
    """
    words = check_keys(message.keys)
    if not message.model or len(message.model) > MAX_NAME_CHARACTERS:
        raise ProtocolError(
            Code.BAD_FIELD, f"expected 1 to {MAX_NAME_CHARACTERS} characters, got {len(message.model)}", "model"
        )
    if message.tenant is not None:
        check_salt(message.tenant)
    numbers = sorted(number for number in pool.spaces.of_model(message.model) if number > message.after)
    space_hits: list[SpaceHits] = []
    looked_up, last = 0, message.after
    for number in numbers:
        use = pool.slabs.spaces.get(number)
        holds = use is not None and use.slots > 0
        if len(space_hits) >= MAX_SPACES or (holds and space_hits and looked_up + len(words) > MAX_LOOKED_UP):
            return space_hits, last
        last = number
        hits, resident = (0, 0)
        if holds:
            looked_up += len(words)
            hits, resident = _hits(pool, words, number, message.tenant)
        space = pool.spaces.by_number[number]
        engines = pool.spaces.engines[number]
        space_hits.append(SpaceHits(space.identity(), space, {L1: hits}, {L1: resident}, engines))
    return space_hits, 0


def _hits(pool: Pool, words: U64, space: int, salt: str | None) -> tuple[int, int]:
    """Return the number of leading readable blocks, and of all readable blocks, of a chain in a space."""
    memory = pool.table.memory
    numbers, _, is_readable = memory.find_ready(words, space)
    if salt is not None:
        tenant = pool.tenants.by_salt.get(salt)
        if tenant is None:
            return 0, 0
        is_readable &= memory.cold.take(numbers, axis=0, mode="clip")[:, COLD_TENANT] == np.uint64(tenant.number)
    return leading(is_readable), int(np.count_nonzero(is_readable))
