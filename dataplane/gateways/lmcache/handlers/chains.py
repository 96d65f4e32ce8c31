"""Keys of requests: decode and hash tokens once, however often a request repeats them.

Every operation of a request carries all of its tokens. The hashed keys are cached with the token bytes, so that a
repetition costs one memory comparison, and a longer array continues where the shorter one ended. The cache is bounded
by requests and by bytes, and drops the least recently used requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dataplane.gateways.lmcache.wire import tokens
from dataplane.gateways.lmcache.wire.messages import Key
from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS
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
_NONE = b"\x90"
_UNKNOWN = -1


@dataclass(eq=False, slots=True)
class TokenChain:
    """One request's tokens and the keys of their full chunks."""

    salt: str
    body: bytes
    """The array's elements as received."""
    count: int
    packed: bytes
    """Concatenated keys."""
    hashed_bytes: int
    """Bytes of `body` whose tokens the keys cover; -1 if unknown, in which case no longer array can continue it."""

    def keys(self, start: int, end: int) -> bytes:
        """Return the packed keys of the full chunks from token `start` to token `end`."""
        return self.packed[KEY_BYTES * (start // CHUNK_TOKENS) : KEY_BYTES * (end // CHUNK_TOKENS)]

    def leads_to(self, body: bytes) -> bool:
        """Return whether an array begins with the tokens that the keys cover."""
        return self.hashed_bytes > 0 and body.startswith(self.body[: self.hashed_bytes])

    @property
    def mark(self) -> tuple[int, bytes]:
        return self.count, self.body[:MARK_BYTES]


class RequestChains:
    """Cache of the chains of recent requests."""

    def __init__(self, max_chains: int = MAX_CHAINS, max_bytes: int = MAX_BYTES) -> None:
        self._max_chains = max_chains
        self._max_bytes = max_bytes
        self._chains: OrderedDict[str, TokenChain] = OrderedDict()
        """Chains by request id, least recently used first."""
        self._marked: dict[tuple[int, bytes], TokenChain] = {}
        self._begun: dict[bytes, TokenChain] = {}
        """Latest chain for each beginning of an array, because a conversation continues under a new request id."""
        self.nbytes = 0
        self.hashed_chunks = 0
        """Number of chunks hashed since the start."""
        self.on_hashed: Callable[[bytes, bytes], None] | None = None
        """Callback for each key that is computed, with the tokens of its chunk as u32 little-endian."""

    def __len__(self) -> int:
        return len(self._chains)

    def of(self, key: Key, same: TokenChain | None = None) -> tuple[TokenChain, int]:
        """Return a chain that begins with a key's tokens, and the number of the key's tokens.

        `same` is the chain that `shortened` found for the key's tokens. Raise TokenError or
        ProtocolError(BAD_SALT) if the key is invalid.
        """
        data = bytes(key.token_ids)
        if same is not None and data == _NONE:
            count, body = same.count, same.body
        else:
            same = None
            count, first = tokens.header(data)
            if count > MAX_TOKENS:
                raise TokenError(f"expected at most {MAX_TOKENS} tokens, got {count}")
            body = data[first:]
        known = self._chains.get(key.request_id)
        if known is not None and known.salt != key.cache_salt:
            known = None
        if known is not None and (known is same or (count <= known.count and known.body.startswith(body))):
            self._chains.move_to_end(key.request_id)
            return known, count
        if same is not None and same.salt == key.cache_salt:
            return self._keep(key.request_id, same), count
        for begun in (known, self._begun.get(body[:MARK_BYTES])):
            if begun is not None and begun.salt == key.cache_salt and begun.leads_to(body):
                return self._keep(key.request_id, self._hashed(begun, body, count)), count
        check_salt(key.cache_salt, "cache_salt")
        empty = TokenChain(key.cache_salt, b"", 0, b"", 0)
        return self._keep(key.request_id, self._hashed(empty, body, count)), count

    def _forget(self, request_id: str) -> None:
        chain = self._chains.pop(request_id, None)
        if chain is not None:
            self._drop(chain)

    def _hashed(self, chain: TokenChain, body: bytes, count: int) -> TokenChain:
        """Return the chain of a longer array that begins with the hashed tokens of `chain`."""
        done = len(chain.packed) // KEY_BYTES
        data = tokens.decode(body[chain.hashed_bytes :], count - done * CHUNK_TOKENS)
        full = len(data) // CHUNK_BYTES
        key = chain.packed[-KEY_BYTES:] or root_key(chain.salt)
        keys = [chain.packed]
        for at in range(0, full * CHUNK_BYTES, CHUNK_BYTES):
            chunk = data[at : at + CHUNK_BYTES]
            key = next_key(key, chunk)
            keys.append(key)
            if self.on_hashed is not None:
                self.on_hashed(key, chunk)
        self.hashed_chunks += full
        hashed_bytes = _UNKNOWN
        if chain.hashed_bytes + _shortest(data) == len(body):  # else the end of the last chunk is unknown
            hashed_bytes = len(body) - _shortest(data[full * CHUNK_BYTES :])
        return TokenChain(chain.salt, body, count, b"".join(keys), hashed_bytes)

    def _keep(self, request_id: str, chain: TokenChain) -> TokenChain:
        self._forget(request_id)
        self._chains[request_id] = chain
        self._marked[chain.mark] = chain
        self._begun[chain.mark[1]] = chain
        self.nbytes += len(chain.body)
        while len(self._chains) > self._max_chains or (self.nbytes > self._max_bytes and len(self._chains) > 1):
            self._drop(self._chains.popitem(last=False)[1])
        return chain

    def _drop(self, chain: TokenChain) -> None:
        self.nbytes -= len(chain.body)
        if self._marked.get(chain.mark) is chain:
            del self._marked[chain.mark]
        if self._begun.get(chain.mark[1]) is chain:
            del self._begun[chain.mark[1]]

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
        chain = self._marked.get((count, frame[first : first + MARK_BYTES]))
        if chain is None or not frame.startswith(chain.body, first):
            return frame, None
        return frame[:at] + _NONE + frame[first + len(chain.body) :], chain


def _shortest(data: bytes) -> int:
    """Return the bytes that tokens take in an array if each is encoded in its shortest form."""
    ids = np.frombuffer(data, "<u4")
    wider = sum(int(np.count_nonzero(ids >= limit)) * more for limit, more in _WIDER)
    return len(ids) + wider


_WIDER = ((0x80, 1), (0x100, 1), (0x10000, 2))
"""Pairs of a limit and the additional bytes of an element that is at least as large."""
