"""Keys of requests: decode and hash tokens once, however often a request repeats them.

Every operation of a request carries all of its tokens. The hashed keys are cached with the tokens as received, so that
a repetition costs one memory comparison, and a longer array continues where the shorter one ended. The same tokens have
the same keys in both forms of `wire.tokens`, but are hashed once for each. The cache is bounded by requests and by
bytes, and drops the least recently used requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from dataplane.gateways.lmcache.wire import tokens
from dataplane.gateways.lmcache.wire.messages import Key
from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS, TokenArray
from dataplane.protocol.keys import KEY_BYTES, TokenError, next_key, root_key
from dataplane.protocol.salts import check_salt

CHUNK_BYTES = 4 * CHUNK_TOKENS
MAX_TOKENS = 1 << 20
"""Maximum number of tokens in one request: as many as the keys of one reservation cover."""
MAX_CHAINS = 8192
MAX_BYTES = 64 << 20
"""Maximum bytes of all cached token arrays."""
MARK_BYTES = 48
"""Leading bytes of an array's elements that, with the number of elements, identify the array before the rest of its
frame is read."""
MAX_HEAD_BYTES = 2048
"""Leading bytes of a frame in which the token array must begin to be found without decoding the frame."""

_FIELD = b"\xa9token_ids"
"""Only arrays are left out of frames: their elements would be skipped one by one."""
_NONE = b"\x90"
_UNKNOWN = -1


@dataclass(eq=False, slots=True)
class TokenChain:
    """One request's tokens and the keys of their full chunks."""

    salt: str
    tokens: TokenArray
    packed: bytes
    """Concatenated keys."""
    hashed_bytes: int
    """Bytes of `tokens.body` that the keys cover; -1 if unknown, in which case no longer array can continue it."""

    def keys(self, start: int, end: int) -> bytes:
        """Return the packed keys of the full chunks from token `start` to token `end`."""
        return self.packed[KEY_BYTES * (start // CHUNK_TOKENS) : KEY_BYTES * (end // CHUNK_TOKENS)]

    def leads_to(self, array: TokenArray) -> bool:
        """Return whether an array begins with the tokens that the keys cover."""
        if array.fixed != self.tokens.fixed or self.hashed_bytes <= 0:
            return False
        return array.body.startswith(self.tokens.body[: self.hashed_bytes])

    def contains(self, array: TokenArray) -> bool:
        """Return whether the tokens begin with those of an array."""
        fixed, length, body = self.tokens
        return array.fixed == fixed and array.length <= length and body.startswith(array.body)


def _mark(array: TokenArray) -> tuple[bool, int, bytes]:
    return array.fixed, array.length, array.body[:MARK_BYTES]


def _beginning(array: TokenArray) -> tuple[bool, bytes]:
    return array.fixed, array.body[:MARK_BYTES]


OnHashed = Callable[[bytes, bytes], None]
"""Called for each key that is computed, with the tokens of its chunk as u32 little-endian."""


class RequestChains:
    """Cache of the chains of recent requests."""

    def __init__(
        self, on_hashed: OnHashed | None = None, *, max_chains: int = MAX_CHAINS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._max_chains = max_chains
        self._max_bytes = max_bytes
        self._chains: OrderedDict[str, TokenChain] = OrderedDict()
        """Chains by request id, least recently used first."""
        self._marked: dict[tuple[bool, int, bytes], TokenChain] = {}
        self._begun: dict[tuple[bool, bytes], TokenChain] = {}
        """Latest chain for each beginning of an array, because a conversation continues under a new request id."""
        self.nbytes = 0
        self.hashed_chunks = 0
        """Number of chunks hashed since the start."""
        self._on_hashed = on_hashed

    def __len__(self) -> int:
        return len(self._chains)

    def of(self, key: Key, same: TokenChain | None = None) -> tuple[TokenChain, int]:
        """Return a chain that begins with a key's tokens, and the number of the key's tokens.

        `same` is the chain that `shortened` found for the key's tokens. Raise TokenError or
        ProtocolError(BAD_SALT) if the key is invalid.
        """
        if same is not None and bytes(key.token_ids) == _NONE:
            array = same.tokens
        else:
            same, array = None, tokens.array_of(key)
            if array.length > MAX_TOKENS:
                raise TokenError(f"expected at most {MAX_TOKENS} tokens, got {array.length}")
        existing = self._chains.get(key.request_id)
        if existing is not None and existing.salt != key.cache_salt:
            existing = None
        if existing is not None and (existing is same or existing.contains(array)):
            self._chains.move_to_end(key.request_id)
            return existing, array.length
        if same is not None and same.salt == key.cache_salt:
            return self._keep(key.request_id, same), array.length
        for begun in (existing, self._begun.get(_beginning(array))):
            if begun is not None and begun.salt == key.cache_salt and begun.leads_to(array):
                return self._keep(key.request_id, self._hashed(begun, array)), array.length
        check_salt(key.cache_salt, "cache_salt")
        empty = TokenChain(key.cache_salt, TokenArray(array.fixed, 0, b""), b"", 0)
        return self._keep(key.request_id, self._hashed(empty, array)), array.length

    def _forget(self, request_id: str) -> None:
        chain = self._chains.pop(request_id, None)
        if chain is not None:
            self._drop(chain)

    def _hashed(self, chain: TokenChain, array: TokenArray) -> TokenChain:
        """Return the chain of a longer array that begins with the hashed tokens of `chain`."""
        done = len(chain.packed) // KEY_BYTES
        data = array.after(done * CHUNK_TOKENS, chain.hashed_bytes).decode()
        full = len(data) // CHUNK_BYTES
        key = chain.packed[-KEY_BYTES:] or root_key(chain.salt)
        keys = [chain.packed]
        for at in range(0, full * CHUNK_BYTES, CHUNK_BYTES):
            chunk = data[at : at + CHUNK_BYTES]
            key = next_key(key, chunk)
            keys.append(key)
            if self._on_hashed is not None:
                self._on_hashed(key, chunk)
        self.hashed_chunks += full
        hashed_bytes = _UNKNOWN
        length = len(array.body)
        if chain.hashed_bytes + array.encoded_bytes(data) == length:  # else the end of the last chunk is unknown
            hashed_bytes = length - array.encoded_bytes(data[full * CHUNK_BYTES :])
        return TokenChain(chain.salt, array, b"".join(keys), hashed_bytes)

    def _keep(self, request_id: str, chain: TokenChain) -> TokenChain:
        self._forget(request_id)
        self._chains[request_id] = chain
        self._marked[_mark(chain.tokens)] = chain
        self._begun[_beginning(chain.tokens)] = chain
        self.nbytes += len(chain.tokens.body)
        while len(self._chains) > self._max_chains or (self.nbytes > self._max_bytes and len(self._chains) > 1):
            self._drop(self._chains.popitem(last=False)[1])
        return chain

    def _drop(self, chain: TokenChain) -> None:
        self.nbytes -= len(chain.tokens.body)
        if self._marked.get(_mark(chain.tokens)) is chain:
            del self._marked[_mark(chain.tokens)]
        if self._begun.get(_beginning(chain.tokens)) is chain:
            del self._begun[_beginning(chain.tokens)]

    def shortened(self, frame: bytes) -> tuple[bytes, TokenChain | None]:
        """Return a frame without its tokens and the known chain that they belong to, to avoid decoding them again.

        If no known chain has these tokens, return the frame unchanged and None.
        """
        at = frame.find(_FIELD, 0, MAX_HEAD_BYTES)
        if at < 0:
            return frame, None
        at += len(_FIELD)
        try:
            count, first = tokens.header(frame, at)
        except TokenError:
            return frame, None
        chain = self._marked.get((False, count, frame[first : first + MARK_BYTES]))
        if chain is None or not frame.startswith(chain.tokens.body, first):
            return frame, None
        return frame[:at] + _NONE + frame[first + len(chain.tokens.body) :], chain
