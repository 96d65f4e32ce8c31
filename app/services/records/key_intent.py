"""Keys of a request: token ids that are cut into chunks, or the keys themselves."""

import re
from collections.abc import Sequence

from app.schemas.base.fields import KEY, MAX_CHUNK_TOKENS, MAX_KEYS, MAX_TOKENS
from app.services.base import checks
from dataplane.protocol.keys import KEY_BYTES


def check_chunk(chunk: int, faults: checks.Faults) -> bool:
    """Check the number of tokens per chunk, and return whether it is valid."""
    if not 1 <= chunk <= MAX_CHUNK_TOKENS:
        faults.add("chunk_tokens", f"expected 1 to {MAX_CHUNK_TOKENS}, got {chunk}")
        return False
    return True


def check_tokens(tokens: Sequence[int], chunk: int, faults: checks.Faults, path: str = "tokens") -> None:
    """Check for at least one full chunk of token ids, and not too many. `path` is the field that the tokens come
    from."""
    if not check_chunk(chunk, faults):
        return
    if len(tokens) > MAX_TOKENS or len(tokens) // chunk > MAX_KEYS:
        faults.add(path, f"expected at most {MAX_TOKENS} tokens and {MAX_KEYS} full chunks, got {len(tokens)} tokens")
    elif len(tokens) < chunk:
        faults.add(path, f"expected at least one full chunk of {chunk} tokens, got {len(tokens)}")


def unpacked(keys: list[str]) -> list[bytes]:
    """Return the keys of 64 hex digits each as bytes. Raises ValueError."""
    if not 1 <= len(keys) <= MAX_KEYS:
        raise ValueError(f"expected 1 to {MAX_KEYS} keys, got {len(keys)}")
    for number, key in enumerate(keys):
        if re.fullmatch(KEY, key) is None:
            raise ValueError(f"expected {2 * KEY_BYTES} hex digits in key {number}, got {len(key)} characters")
    unpacked_keys = [bytes.fromhex(key) for key in keys]
    if len(set(unpacked_keys)) != len(unpacked_keys):
        raise ValueError("expected no key twice")
    return unpacked_keys
