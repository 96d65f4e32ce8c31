"""A cache of equal blocks that serves requests one at a time, driven by any policy: a data plane's use of it, alone.

Requests in order. A request's hits are its leading blocks that are present. All its blocks that are present count as
used, tail first. Then it makes room for what is missing, sparing its own blocks, and stores and refreshes the whole
chain, tail first.
"""

from collections.abc import Sequence
from itertools import count

from dataplane.policies import EvictionPolicy
from dataplane.policies.admission import Admission


class Simulator:
    """Room for `capacity` blocks of one size; counts `hits`, `requested` and `refused`."""

    def __init__(
        self, policy: EvictionPolicy, capacity: int, admission: Admission | None = None, size: int = 4096
    ) -> None:
        self.policy = policy
        self.hits = 0
        self.requested = 0
        self.refused = 0
        self._admission = admission
        self._size = size
        self._free = capacity
        self._numbers = count()
        self._present: dict[int, int] = {}
        self._key_of: dict[int, int] = {}
        self._used_at: dict[int, float] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._present

    def serve(self, keys: Sequence[int], now: float) -> int:
        """One chain; returns its hits."""
        present = self._present
        hits = 0
        while hits < len(keys) and keys[hits] in present:
            hits += 1
        self.hits += hits
        self.requested += len(keys)
        for key in reversed(keys):
            if key in present:
                self._use(present[key], now)
        missing = [key for key in keys if key not in present]
        admitted = self._admit(missing, now)
        self._make_room(admitted, {present[key] for key in keys if key in present}, now)
        chosen = set(missing[: min(admitted, self._free)])
        self.refused += admitted - len(chosen)
        for key in reversed(keys):
            if key in chosen:
                self._store(key, now)
            elif key in present:
                self.policy.refresh(present[key], now)
                self._used_at[present[key]] = now
        return hits

    def _use(self, block: int, now: float) -> None:
        self.policy.touch(block, now)
        self._used_at[block] = now

    def _admit(self, missing: Sequence[int], now: float) -> int:
        if self._admission is None:
            return len(missing)
        answers = [self._admission.admits(key, len(self._present), now) for key in missing]
        return answers.index(False) if False in answers else len(missing)

    def _make_room(self, needed: int, excluded: set[int], now: float) -> None:
        victims = []
        if self._free < needed:
            for block in self.policy.victims(now):
                if block not in excluded:
                    victims.append(block)
                    if self._free + len(victims) >= needed:
                        break
        for block in victims:
            self.policy.evict(block, now)
            del self._present[self._key_of.pop(block)]
            self._free += 1
            used_at = self._used_at.pop(block)
            if self._admission is not None:
                self._admission.victim(now - used_at, now)

    def _store(self, key: int, now: float) -> None:
        block = next(self._numbers)
        self.policy.insert(block, key, self._size, now)
        self._present[key] = block
        self._key_of[block] = key
        self._used_at[block] = now
        self._free -= 1
