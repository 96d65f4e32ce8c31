"""Keys of a request's chunks, computed once and extended as the request grows."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from dataplane.protocol.keys import next_key, root_key, token_bytes


class RequestKeys:
    """Keys of the whole chunks of one vLLM request."""

    def __init__(self, request: Any, chunk_tokens: int, namespace: str = "") -> None:
        """Begin the chain. `namespace` separates keys from those before a reset. Raise ProtocolError for a salt that
        is not a tenant name."""
        self.tenant: str = request.cache_salt or ""
        self.keys: list[bytes] = []
        self._chunk_tokens = chunk_tokens
        self._last = root_key(self.tenant, adapter_of(request, namespace))

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


def adapter_of(request: Any, namespace: str = "") -> str:
    """Return text that identifies the adapter (LoRA) of a request and the namespace; empty without both."""
    lora = request.lora_request
    parts = [] if lora is None else [lora.lora_name, lora.lora_path]
    if namespace:
        parts.append(namespace)
    return "" if not parts else parts[0] if len(parts) == 1 else msgspec.json.encode(parts).decode()


def extras_of(request: Any, start: int, end: int) -> bytes:
    """Return bytes that distinguish the chunk of tokens `start` to `end` from chunks with the same token ids:
    multimodal items with their positions, and embeddings in place of tokens."""
    parts: list[tuple[str, object, int]] = []
    for item in request.mm_features or ():
        offset, length = item.mm_position.offset, item.mm_position.length
        if offset < end and offset + length > start:
            parts.append(("mm", item.identifier, offset - start))
    embeds = request.prompt_embeds
    if embeds is not None and start < len(embeds):
        import torch

        part = embeds[start:end].contiguous().view(torch.uint8)
        parts.append(("embeds", sha256(part.cpu().numpy().tobytes()).digest(), 0))
    return msgspec.msgpack.encode(parts) if parts else b""
