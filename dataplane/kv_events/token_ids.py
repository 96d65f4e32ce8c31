"""Token ids of recently hashed chunks, for events that carry them. They are prompts: they are kept only if the settings
request it, and never written to disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable

MAX_CHUNKS = 1 << 16
MAX_BYTES = 64 << 20
MAX_REQUESTED = 1 << 18


class TokenIds:
    """Bounded map from keys to the token ids of their chunks, as u32 little-endian. The oldest entries are dropped
    first.

    Tokens that are not known can be marked as wanted for a model; `on_found` is called with the key and the models when
    they arrive.
    """

    def __init__(self, on_found: Callable[[bytes, Iterable[str]], None], max_chunks: int = MAX_CHUNKS) -> None:
        self._on_found = on_found
        self._max_chunks = max_chunks
        self._tokens: dict[bytes, bytes] = {}
        self._bytes = 0
        self._requested: dict[bytes, set[str]] = {}

    def add(self, key: bytes, tokens: bytes) -> None:
        """Remember the tokens of a chunk."""
        before = self._tokens.pop(key, b"")
        self._tokens[key] = tokens
        self._bytes += len(tokens) - len(before)
        while len(self._tokens) > self._max_chunks or self._bytes > MAX_BYTES:
            self._bytes -= len(self._tokens.pop(next(iter(self._tokens))))
        if self._requested and (models := self._requested.pop(key, None)) is not None:
            self._on_found(key, models)

    def get(self, key: bytes) -> bytes:
        """Return the tokens of a chunk, or nothing if they are not known."""
        return self._tokens.get(key, b"")

    def want(self, key: bytes, model: str) -> None:
        """Request the tokens of a chunk that was published without them for a model."""
        if len(self._requested) < MAX_REQUESTED:
            self._requested.setdefault(key, set()).add(model)

    def forget(self, key: bytes, model: str) -> None:
        """Drop the request for the tokens of a chunk that was withdrawn for a model."""
        models = self._requested.get(key)
        if models is not None:
            models.discard(model)
            if not models:
                del self._requested[key]

    def forget_all(self) -> None:
        """Drop all requests, because all chunks were withdrawn."""
        self._requested.clear()
