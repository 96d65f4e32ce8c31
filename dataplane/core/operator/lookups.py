"""Look up a chain as an engine would, for operators and routers that query the node instead of attaching to it."""

from __future__ import annotations

import numpy as np

from dataplane.core.engines.storing import check_keys
from dataplane.core.pool.pool import Pool
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.lookups import LookupChain, SpaceHits
from dataplane.protocol.layout import COLD_TENANT, U64, leading
from dataplane.protocol.salts import check_salt
from dataplane.protocol.spaces import MAX_NAME_CHARACTERS

MAX_LOOKED_UP = 16_384
"""Maximum number of keys times spaces that one message looks up; at least one space is always looked up."""
MAX_SPACES = 512
"""Maximum number of spaces in one answer."""
L1 = "l1"


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
    found: list[SpaceHits] = []
    looked_up, last = 0, message.after
    for number in numbers:
        use = pool.slabs.spaces.get(number)
        holds = use is not None and use.slots > 0
        if len(found) >= MAX_SPACES or (holds and found and looked_up + len(words) > MAX_LOOKED_UP):
            return found, last
        last = number
        hits, resident = (0, 0)
        if holds:
            looked_up += len(words)
            hits, resident = _hits(pool, words, number, message.tenant)
        space = pool.spaces.by_number[number]
        found.append(SpaceHits(space.identity(), space, {L1: hits}, {L1: resident}))
    return found, 0


def _hits(pool: Pool, words: U64, space: int, salt: str | None) -> tuple[int, int]:
    """Return the number of leading readable blocks, and of all readable blocks, of a chain in a space."""
    memory = pool.table.memory
    numbers, _, good = memory.find_ready(words, space)
    if salt is not None:
        tenant = pool.tenants.by_salt.get(salt)
        if tenant is None:
            return 0, 0
        good &= memory.cold.take(numbers, axis=0, mode="clip")[:, COLD_TENANT] == np.uint64(tenant.number)
    return leading(good), int(np.count_nonzero(good))
