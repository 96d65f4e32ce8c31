"""Keys of requests: tokens are decoded and hashed once, however often a request repeats them.

Every operation of a request carries all of its tokens. What was hashed is kept with the bytes it came from, so that a
repetition costs one comparison of memory; a longer array goes on where the shorter one ended. Least recently used
requests are forgotten, by number and by bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS, KEY_BYTES, TokenError, next_key, root_key
from dataplane.protocol.salts import check_salt
from dataplane.transport.lmcache import tokens
from dataplane.transport.lmcache.messages import Key

CHUNK_TOKENS = DEFAULT_CHUNK_TOKENS
CHUNK_BYTES = 4 * CHUNK_TOKENS
MAX_TOKENS = 1 << 20
"""Of one request: as many as a reservation has keys for."""
MAX_CHAINS = 8192
MAX_BYTES = 64 << 20
"""Of the token arrays that are kept."""
MARK_BYTES = 48
"""Of an array's elements, by which with their number it is found before the rest of its frame is read."""
MAX_HEAD_BYTES = 2048
"""In which a key's tokens begin, where they are found without a walk over all of them."""

_FIELD = b"\xa9token_ids"
_NONE = b"\x90"
_UNKNOWN = -1


@dataclass(eq=False, slots=True)
class Chain:
    """One request's tokens and the keys of their full chunks."""

    salt: str
    body: bytes
    """The array's elements as they came."""
    count: int
    packed: bytes
    """Keys, one after another."""
    hashed_bytes: int
    """Bytes of `body` whose tokens are in the keys; -1 where that is not known, and nothing can go on from it."""

    def keys(self, start: int, end: int) -> bytes:
        """Keys of the full chunks from token `start` to token `end`, packed."""
        return self.packed[KEY_BYTES * (start // CHUNK_TOKENS) : KEY_BYTES * (end // CHUNK_TOKENS)]

    def leads_to(self, body: bytes) -> bool:
        """Whether an array goes on where the keys of this one end."""
        return self.hashed_bytes > 0 and body.startswith(self.body[: self.hashed_bytes])

    @property
    def mark(self) -> tuple[int, bytes]:
        return self.count, self.body[:MARK_BYTES]


class Chains:
    """Chains of the requests that were heard of last."""

    def __init__(self, max_chains: int = MAX_CHAINS, max_bytes: int = MAX_BYTES) -> None:
        self._max_chains = max_chains
        self._max_bytes = max_bytes
        self._chains: OrderedDict[str, Chain] = OrderedDict()
        """By request."""
        self._marked: dict[tuple[int, bytes], Chain] = {}
        self._begun: dict[bytes, Chain] = {}
        """By how they begin, the last one of each: a conversation goes on under another request's name."""
        self.nbytes = 0
        self.hashed_chunks = 0
        """Since the start."""

    def __len__(self) -> int:
        return len(self._chains)

    def of(self, key: Key, same: Chain | None = None) -> tuple[Chain, int]:
        """The chain of a key's tokens, of these or more, and how many they are. `same`: what `shortened` found in their
        place. Raises TokenError, ProtocolError(BAD_SALT)."""
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
        empty = Chain(key.cache_salt, b"", 0, b"", 0)
        return self._keep(key.request_id, self._hashed(empty, body, count)), count

    def _forget(self, request_id: str) -> None:
        chain = self._chains.pop(request_id, None)
        if chain is not None:
            self._drop(chain)

    def _hashed(self, chain: Chain, body: bytes, count: int) -> Chain:
        """The chain of more tokens, which begin with those that were hashed."""
        done = len(chain.packed) // KEY_BYTES
        data = tokens.decode(body[chain.hashed_bytes :], count - done * CHUNK_TOKENS)
        full = len(data) // CHUNK_BYTES
        key = chain.packed[-KEY_BYTES:] or root_key(chain.salt)
        keys = [chain.packed]
        for at in range(0, full * CHUNK_BYTES, CHUNK_BYTES):
            key = next_key(key, data[at : at + CHUNK_BYTES])
            keys.append(key)
        self.hashed_chunks += full
        hashed_bytes = _UNKNOWN
        if chain.hashed_bytes + _shortest(data) == len(body):  # else the last chunk ends who knows where
            hashed_bytes = len(body) - _shortest(data[full * CHUNK_BYTES :])
        return Chain(chain.salt, body, count, b"".join(keys), hashed_bytes)

    def _keep(self, request_id: str, chain: Chain) -> Chain:
        self._forget(request_id)
        self._chains[request_id] = chain
        self._marked[chain.mark] = chain
        self._begun[chain.mark[1]] = chain
        self.nbytes += len(chain.body)
        while len(self._chains) > self._max_chains or (
            self.nbytes > self._max_bytes and len(self._chains) > 1
        ):
            self._drop(self._chains.popitem(last=False)[1])
        return chain

    def _drop(self, chain: Chain) -> None:
        self.nbytes -= len(chain.body)
        if self._marked.get(chain.mark) is chain:
            del self._marked[chain.mark]
        if self._begun.get(chain.mark[1]) is chain:
            del self._begun[chain.mark[1]]

    def shortened(self, frame: bytes) -> tuple[bytes, Chain | None]:
        """A frame with a key, without its tokens where they are those of a chain that is known: nobody need walk over
        them again. The frame itself, and None, where they are not."""
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
    """Bytes that tokens take in an array when each is written in its shortest form."""
    ids = np.frombuffer(data, "<u4")
    wider = sum(int(np.count_nonzero(ids >= limit)) * more for limit, more in _WIDER)
    return len(ids) + wider


_WIDER = ((0x80, 1), (0x100, 1), (0x10000, 2))
"""From which number on an element takes how many bytes more."""
