"""Which keys a request means: it says keys, tokens, text or messages, and everything else follows."""

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from app.schemas.tokenizers import TokenizerUsed
from app.services import checks
from app.services.callers import Caller
from app.services.key_intent import check_chunk, check_tokens, unpacked
from app.services.tokenizers import Tokenizers
from dataplane.protocol.keys import chain


class Source(Protocol):
    """The fields of a request that say which keys."""

    tokens: list[int] | None
    keys: list[str] | None
    text: str | None
    messages: list[dict[str, Any]] | None
    add_generation_prompt: bool
    chunk_tokens: int


SOURCES = ("tokens", "keys", "text", "messages")


@dataclass(frozen=True)
class Chain:
    keys: list[bytes]
    """Of full chunks; empty for a request that names none."""
    tokenizer: TokenizerUsed | None = None
    tokens: int | None = None
    """Of which the keys are; None when the request gave keys."""


NO_KEYS = Chain([])


def given(source: Source) -> list[str]:
    """Names of the ways in which a request says its keys."""
    return [name for name in SOURCES if getattr(source, name) is not None]


async def resolved(
    source: Source, model: str | None, salt: str | None, tokenizers: Tokenizers, by: Caller
) -> Chain:
    """The keys of a request, none when it says nothing. Tokens and text are those of a model and a tenant.

    Raises Invalid, TooManyRequests."""
    faults = checks.Faults()
    ways = given(source)
    if len(ways) > 1:
        faults.add(ways[0], f"expected at most one of {', '.join(SOURCES)}")
        faults.stop()
    if source.add_generation_prompt and source.messages is None:
        faults.add("add_generation_prompt", "expected messages: only their template opens a turn")
    if ways and ways != ["keys"]:
        for name, value in (("tenant", salt), ("model", model)):
            if value is None:
                faults.add(
                    name, f"expected a {name}: a prefix of {ways[0]} is that of one tenant and one model"
                )
    if source.tokens is not None:
        check_tokens(source.tokens, source.chunk_tokens, faults)
    else:
        check_chunk(source.chunk_tokens, faults)
    keys = faults.check("keys", lambda: unpacked(source.keys or [])) if source.keys is not None else None
    faults.stop()
    if not ways:
        return NO_KEYS
    if keys is not None:
        return Chain(keys)
    assert model is not None
    assert salt is not None
    tokens, used = source.tokens, None
    if tokens is None:
        encoded = await tokenizers.encode(
            model, source.text, source.messages, by, add_generation_prompt=source.add_generation_prompt
        )
        tokens, used = encoded.tokens, encoded.by
        check_tokens(tokens, source.chunk_tokens, faults, ways[0])
        faults.stop()
    # Off the loop: hashing a million tokens takes longer than others should wait.
    found = await asyncio.to_thread(chain, tokens, salt, chunk_tokens=source.chunk_tokens)
    return Chain(found, used, len(tokens))
