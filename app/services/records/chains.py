"""The chain of keys of a request, which gives it as keys, tokens, text or messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.schemas.records.pins import KEY_SOURCES
from app.schemas.records.tokenizers import TokenizerUsed
from app.services.base import checks
from app.services.base.large_work import LargeWork
from app.services.base.principals import Principal
from app.services.records.key_intent import check_chunk, check_tokens, unpacked
from app.services.records.tokenizers import Tokenizers
from dataplane.protocol.keys import chain


class ChainSource(Protocol):
    """Fields of a request that determine its keys."""

    tokens: Sequence[int] | None
    keys: list[str] | None
    text: str | None
    messages: list[dict[str, Any]] | None
    add_generation_prompt: bool
    chunk_tokens: int


@dataclass(frozen=True)
class KeyChain:
    keys: list[bytes]
    """Keys of the full chunks; empty if the request gives none."""
    tokenizer: TokenizerUsed | None = None
    tokens: int | None = None
    """Number of tokens that the keys were computed from; None if the request gave keys."""


NO_KEYS = KeyChain([])
MAX_AT_ONCE_TOKENS = 16_384
"""Largest number of tokens that are hashed on the event loop, in less than a millisecond."""


async def chained(
    tokens: Sequence[int], salt: str, chunk_tokens: int, large_work: LargeWork, by: Principal
) -> list[bytes]:
    """Return the keys of the full chunks of tokens. Raises TooManyRequests."""
    if len(tokens) <= MAX_AT_ONCE_TOKENS:
        return chain(tokens, salt, chunk_tokens=chunk_tokens)
    return await large_work.run(by.share, chain, tokens, salt, chunk_tokens=chunk_tokens)


def sources_of(source: ChainSource) -> list[str]:
    """Return the names of the key sources that a request gives."""
    return [name for name in KEY_SOURCES if getattr(source, name) is not None]


async def resolved(
    source: ChainSource,
    model: str | None,
    salt: str | None,
    tokenizers: Tokenizers,
    large_work: LargeWork,
    by: Principal,
) -> KeyChain:
    """Return the keys of a request, or none if it gives no source. Tokens and text need a model and a tenant.

    Raises Invalid, TooManyRequests.
    """
    faults = checks.Faults()
    given_sources = sources_of(source)
    if len(given_sources) > 1:
        faults.add(given_sources[0], f"expected at most one of {', '.join(KEY_SOURCES)}")
        faults.stop()
    if source.add_generation_prompt and source.messages is None:
        faults.add(
            "add_generation_prompt", "expected false without messages: only a chat template has a generation prompt"
        )
    if given_sources and given_sources != ["keys"]:
        for name, value in (("tenant", salt), ("model", model)):
            if value is None:
                faults.add(
                    name,
                    f"expected a {name}, because {given_sources[0]} identify a prefix only with a tenant and a model",
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
    tokens, used = source.tokens, None
    if tokens is None:
        encoded = await tokenizers.encode(
            model, source.text, source.messages, by, add_generation_prompt=source.add_generation_prompt
        )
        tokens, used = encoded.tokens, encoded.by
        check_tokens(tokens, source.chunk_tokens, faults, given_sources[0])
        faults.stop()
    chained_keys = await chained(tokens, salt, source.chunk_tokens, large_work, by)
    return KeyChain(chained_keys, used, len(tokens))
