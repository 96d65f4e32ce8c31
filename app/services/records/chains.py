"""Chains of keys: of requests, which give them as keys, tokens, text or messages, and the rules of keys and tokens."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.schemas.base.fields import KEY, MAX_CHUNK_TOKENS, MAX_KEYS, MAX_TOKENS
from app.schemas.cache.actions import KeySource
from app.schemas.records.pins import KEY_SOURCES
from app.schemas.records.tokenizers import TokenizerUsed
from app.services.base import checks
from app.services.base.large_work import LargeWork
from app.services.base.principals import Principal
from app.services.records.tokenizers import Tokenizers
from dataplane.protocol.keys import KEY_BYTES, chain


@dataclass(frozen=True)
class KeyChain:
    keys: list[bytes]
    """Keys of the full chunks; empty if the request gives none."""
    tokenizer: TokenizerUsed | None = None


NO_KEYS = KeyChain([])
MAX_AT_ONCE_TOKENS = 16_384
"""Largest number of tokens that are hashed on the event loop, in less than a millisecond."""


class Chains:
    """Computes the keys of requests. Large requests take turns."""

    def __init__(self, tokenizers: Tokenizers, large_work: LargeWork) -> None:
        self._tokenizers = tokenizers
        self._large_work = large_work

    async def of_tokens(self, tokens: Sequence[int], salt: str, chunk_tokens: int, by: Principal) -> list[bytes]:
        """Return the keys of the full chunks of tokens. Raises TooManyRequests."""
        if len(tokens) <= MAX_AT_ONCE_TOKENS:
            return chain(tokens, salt, chunk_tokens=chunk_tokens)
        return await self._large_work.run(by.share, chain, tokens, salt, chunk_tokens=chunk_tokens)

    async def of(self, source: KeySource, model: str | None, salt: str | None, by: Principal) -> KeyChain:
        """Return the keys of a request, or none if it gives no source. Tokens and text need a model and a tenant.
        Raises Invalid, TooManyRequests."""
        faults = checks.Faults()
        given_sources = sources_of(source)
        if len(given_sources) > 1:
            faults.add(given_sources[0], f"expected at most one of {', '.join(KEY_SOURCES)}")
            faults.stop()
        check_prompt(source.add_generation_prompt, source.messages, faults)
        if given_sources and given_sources != ["keys"]:
            for name, value in (("tenant", salt), ("model", model)):
                if value is None:
                    faults.add(
                        name,
                        f"expected a {name}, because {given_sources[0]} identify a prefix only with a tenant and a "
                        "model",
                    )
        if source.tokens is not None:
            check_tokens(source.tokens, source.chunk_tokens, faults)
        else:
            check_chunk(source.chunk_tokens, faults)
        keys = faults.check("keys", lambda: unpacked(source.keys or [])) if source.keys is not None else None
        faults.stop()
        if not given_sources:
            return NO_KEYS
        if keys is not None:
            return KeyChain(keys)
        assert model is not None
        assert salt is not None
        tokens: Sequence[int] | None = source.tokens
        used = None
        if tokens is None:
            prompt = source.add_generation_prompt
            encoded = await self._tokenizers.encode(
                model, source.text, source.messages, by, add_generation_prompt=prompt
            )
            tokens, used = encoded.tokens, encoded.by
            check_tokens(tokens, source.chunk_tokens, faults, given_sources[0])
            faults.stop()
        return KeyChain(await self.of_tokens(tokens, salt, source.chunk_tokens, by), used)


def sources_of(source: KeySource) -> list[str]:
    """Return the names of the key sources that a request gives."""
    return [name for name in KEY_SOURCES if getattr(source, name) is not None]


def check_prompt(add_generation_prompt: bool, messages: object, faults: checks.Faults) -> None:
    if add_generation_prompt and messages is None:
        faults.add(
            "add_generation_prompt", "expected false without messages: only a chat template has a generation prompt"
        )


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
