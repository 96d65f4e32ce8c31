"""Keys of SGLang's pages.

SGLang names a page by the SHA-256 of its tokens and of the page before, as hexadecimal text. The chain begins with the
request's `extra_key` (which includes the LoRA adapter) and `cache_salt`, so pages of different salts have different
names; neither can be read from a name. The key of a page in Larder is

    SHA-256("larder.sglang.1" | tenant | namespace | name)

with each part preceded by its length as u32 little-endian. The tenant is part of the key, so that engines of different
tenants share nothing. The namespace is empty until the engine clears its storage.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from struct import pack

_TAG = b"larder.sglang.1"


class PageKeys:
    """Keys of the pages of one tenant."""

    def __init__(self, tenant: str, namespace: bytes = b"") -> None:
        self._root = _TAG + _counted(tenant.encode()) + _counted(namespace)

    def of(self, names: Iterable[str]) -> bytes:
        """Return the keys of pages, one after another, 32 bytes each."""
        root = self._root
        return b"".join(sha256(root + _counted(name.encode())).digest() for name in names)


def _counted(part: bytes) -> bytes:
    return pack("<I", len(part)) + part
