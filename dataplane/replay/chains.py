"""Keys of a request's blocks: the chain of its block ids, rooted in the tenant's salt."""

from collections.abc import Iterable

from dataplane.protocol.keys import next_key, root_key
from dataplane.protocol.layout import U64, pack_keys

ID_BYTES = 8


class DerivedChains:
    """Derives keys and caches them: requests that share a prefix share its keys.

    Memory grows with the number of different blocks, by about 250 bytes each.
    """

    def __init__(self) -> None:
        self._roots: dict[str, bytes] = {}
        self._next: dict[tuple[bytes, int], bytes] = {}

    def keys(self, salt: str, ids: Iterable[int]) -> U64:
        """Return the packed keys [n, 4] of a chain of block ids, first block first."""
        key = self._roots.get(salt)
        if key is None:
            key = self._roots[salt] = root_key(salt)
        next_keys = self._next
        keys = []
        for block in ids:
            step = (key, block)
            following = next_keys.get(step)
            if following is None:
                following = next_keys[step] = next_key(key, block.to_bytes(ID_BYTES, "little"))
            key = following
            keys.append(key)
        return pack_keys(keys)
