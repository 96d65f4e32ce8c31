"""Keys of a request's chunks, computed once and extended as the request grows."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

import msgspec

from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.keys import next_key, root_key, token_bytes

_DIGEST = re.compile(r"[0-9a-f]{64}(?:[0-9a-f]{64})?")
"""What vLLM makes of an item's contents: BLAKE3, SHA-256 or SHA-512."""


class Unkeyed(Exception):
    """It is not known what the KV of a request is computed from, so the request is neither loaded nor saved."""

    def __init__(self, reason: str, message: str) -> None:
        """`reason`: `salt`, `adapter`, `media` or `pooling`; requests are counted by it."""
        super().__init__(message)
        self.reason = reason


class RequestKeys:
    """Keys of the whole chunks of one vLLM request."""

    def __init__(
        self, request: Any, chunk_tokens: int, *, adapter: str = "", namespace: str = "", hashes_media: bool = True
    ) -> None:
        """Begin the chain. `adapter`: identity of the adapter's contents; empty without one. `namespace` separates keys
        from those before a reset. `hashes_media`: whether vLLM hashes the contents of multimodal items. Raise Unkeyed
        for a request that has no keys."""
        check_media(request, hashes_media)
        # Token types (of cross-encoders) change embeddings, and further options may.
        if getattr(request.pooling_params, "extra_kwargs", None):
            raise Unkeyed("pooling", "pooling_params.extra_kwargs may change what is computed")
        self.tenant: str = request.cache_salt or ""
        self.adapter = adapter
        self.keys: list[bytes] = []
        self._chunk_tokens = chunk_tokens
        self._namespace = namespace
        parts = [part for part in (adapter, namespace) if part]
        try:
            self._last = root_key(
                self.tenant, msgspec.json.encode(parts).decode() if len(parts) > 1 else "".join(parts)
            )
        except ProtocolError as error:
            raise Unkeyed("salt", error.message) from None

    def without_adapter(self, request: Any) -> bytes:
        """Return the key that the first chunk of the request would have without its adapter."""
        step = self._chunk_tokens
        return next_key(
            root_key(self.tenant, self._namespace), token_bytes(request.all_token_ids[:step]),
            extras_of(request, 0, step),
        )  # fmt: skip

    def extend(self, request: Any, tokens: int) -> list[bytes]:
        """Return the keys of the whole chunks of the first `tokens` tokens, and all further keys computed before."""
        step = self._chunk_tokens
        end = tokens // step * step
        start = len(self.keys) * step
        if end > start:
            ids = token_bytes(request.all_token_ids[start:end])
            for first in range(start, end, step):
                at = 4 * (first - start)
                self._last = next_key(self._last, ids[at : at + 4 * step], extras_of(request, first, first + step))
                self.keys.append(self._last)
        return self.keys


def check_media(request: Any, hashes_media: bool) -> None:
    """Raise Unkeyed if an image, audio or video of a request is not identified by a digest of its contents. vLLM also
    takes names that clients choose (`multi_modal_uuids`). If it does not hash, it numbers items, and with processor
    options it makes a digest of the number."""
    for item in request.mm_features or ():
        if not hashes_media or _DIGEST.fullmatch(media_digest(request, item)) is None:
            raise Unkeyed("media", f"{item.modality} {item.identifier!r:.80} is a name and not a digest of contents")


def media_digest(request: Any, item: Any) -> str:
    """Return the identifier of a multimodal item without the adapter's name, which vLLM prepends if the adapter changes
    encoders too. The adapter's contents are in the key's root."""
    identifier: str = item.identifier
    return identifier if request.lora_request is None else identifier.removeprefix(f"{request.lora_request.lora_name}:")


def extras_of(request: Any, start: int, end: int) -> bytes:
    """Return bytes that distinguish the chunk of tokens `start` to `end` from chunks with the same token ids:
    multimodal items with their positions, and embeddings in place of tokens."""
    parts: list[tuple[str, object, object]] = []
    for item in request.mm_features or ():
        offset, length = item.mm_position.offset, item.mm_position.length
        if offset < end and offset + length > start:
            parts.append(("mm", media_digest(request, item), offset - start))
    embeds = request.prompt_embeds
    if embeds is not None and start < len(embeds):
        import torch

        part = embeds[start:end].contiguous()
        digest = sha256(part.view(torch.uint8).cpu().numpy().tobytes()).digest()
        parts.append(("embeds", digest, [str(part.dtype), *part.shape]))
        if request.prompt_is_token_ids is not None:  # which positions use their tokens, and not their embeddings
            parts.append(("tokens", bytes(request.prompt_is_token_ids[start:end]), 0))
    return msgspec.msgpack.encode(parts) if parts else b""
