"""Tiny tokenizers, made as the library writes them."""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from app.services.records import tokenizing
from tests.app.plane import Plane
from tests.app.problems import accepted

tokenizing.WALL_S = 300.0  # type: ignore[attr-defined]  # a process takes most of 30 s to start on a busy machine
WORDS = 5000
BOS, UNKNOWN, USER, END = WORDS, WORDS + 1, WORDS + 2, WORDS + 3
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %} {{ '<user>' if message.role == 'user' else '' }} "
    "{{ message['content'] | trim }} <end>{% endfor %}{% if add_generation_prompt %} <user>{% endif %}"
)


@cache
def words(*, bos: bool = False, cut: int = 0) -> str:
    """A tokenizer.json that knows `w0` to `w4999`, each a token of its number; `bos`: begins every text with <bos>;
    `cut`: would cut texts after so many tokens."""
    named = {"<bos>": BOS, "<unk>": UNKNOWN, "<user>": USER, "<end>": END}
    known = {f"w{number}": number for number in range(WORDS)} | named
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    if cut:
        tokenizer.enable_truncation(cut)
    return tokenizer.to_str()


def text(tokens: list[int]) -> str:
    """The text that these tokens stand for."""
    return " ".join(f"w{token}" for token in tokens)


T = "/api/v1/tokenizers/llama"
PUT: dict[str, Any] = {"model": "m", "tokenizer": words()}


async def put(plane: Plane, path: str = T, **fields: Any) -> dict[str, Any]:
    """Put a tokenizer, and return the answer."""
    return accepted(await plane.http.put(path, json={**PUT, **fields}))
