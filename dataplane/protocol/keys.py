"""Identity of cached content: a SHA-256 chain over token chunks, rooted in the tenant's salt.

    root  = SHA-256("larder.root.1" | cache_salt | adapter_id)
    key_i = SHA-256("larder.key.1"  | key_{i-1} | tokens_i as u32 little-endian | extra_i)

Every variable field is prefixed with a one-byte tag and its length (u32 little-endian), so different inputs never
serialize to the same bytes: salt "a" with adapter "b" differs from salt "ab". `extra_i` carries the digests of
multimodal items in chunk i. A key names its whole prefix, so equal keys mean equal content and equal history. Only full
chunks have keys.

SHA-256, because a tenant who chooses tokens must not be able to forge an identity, and because at 1 KiB per chunk it is
faster than BLAKE3 on CPUs with SHA instructions. Golden vectors: `tests/golden/keys.json`.
"""

from array import array
from collections.abc import Mapping, Sequence
from hashlib import sha256
from struct import pack

from dataplane.protocol.salts import check_salt

KEY_BYTES = 32
DEFAULT_CHUNK_TOKENS = 256

_ROOT_TAG = b"larder.root.1"
_KEY_TAG = b"larder.key.1"


class TokenError(ValueError):
    """Invalid token ids: not integers, negative, or above 2**32 - 1."""


def root_key(cache_salt: str, adapter_id: str = "") -> bytes:
    """Return the 32-byte root of every chain of one tenant and one adapter (LoRA; empty for none).

    Raises ProtocolError(BAD_SALT) for an invalid salt.
    """
    salt = check_salt(cache_salt).encode()
    adapter = adapter_id.encode()
    return sha256(
        b"".join((_ROOT_TAG, b"S", pack("<I", len(salt)), salt, b"A", pack("<I", len(adapter)), adapter))
    ).digest()


def split_keys(packed: bytes) -> list[bytes]:
    """Return the keys of a chain that are packed one after the other."""
    return [packed[at : at + KEY_BYTES] for at in range(0, len(packed), KEY_BYTES)]


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Return token ids as unsigned 32-bit little-endian. Raises TokenError for an id outside that range."""
    try:
        return array("I", tokens).tobytes()
    except (OverflowError, TypeError) as error:
        raise TokenError(f"expected token ids from 0 to 4294967295: {error}") from None


def next_key(previous: bytes, chunk: bytes, extra: bytes = b"") -> bytes:
    """Return the key of a chunk (`token_bytes` of exactly one full chunk) that follows `previous`."""
    return sha256(
        b"".join((_KEY_TAG, previous, b"T", pack("<I", len(chunk)), chunk, b"X", pack("<I", len(extra)), extra))
    ).digest()


def chain(
    tokens: Sequence[int],
    cache_salt: str = "",
    *,
    adapter_id: str = "",
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    extras: Mapping[int, bytes] | None = None,
) -> list[bytes]:
    """Return the keys of all full chunks of `tokens`, first chunk first; a partial last chunk has no key.

    `extras` maps a chunk's index to the bytes that distinguish the chunk beyond its tokens.
    """
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
    data = token_bytes(tokens)
    key = root_key(cache_salt, adapter_id)
    step = 4 * chunk_tokens
    full = len(data) - len(data) % step
    keys = []
    if not extras:  # on the engine's scheduling path: keep the loop minimal
        head = _KEY_TAG
        middle = b"T" + pack("<I", step)
        tail = b"X" + pack("<I", 0)
        for start in range(0, full, step):
            key = sha256(b"".join((head, key, middle, data[start : start + step], tail))).digest()
            keys.append(key)
        return keys
    for number, start in enumerate(range(0, full, step)):
        key = next_key(key, data[start : start + step], extras.get(number, b""))
        keys.append(key)
    return keys


def tenant_fingerprint(cache_salt: str) -> int:
    """Return 64 bits that name a tenant in access rings, where text does not fit; not an identity of content."""
    return int.from_bytes(sha256(b"larder.tenant.1" + cache_salt.encode()).digest()[:8], "little")
