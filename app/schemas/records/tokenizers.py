"""Tokenizers of models, which let users give text where engines use tokens."""

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from app.schemas.base.fields import NO_NUL, VARIABLE, ModelName, text
from app.schemas.base.listing import Page
from app.schemas.base.records import Note

MAX_SPECIAL_CHARACTERS = 1024
SpecialToken = Annotated[str, text(NO_NUL, maxLength=MAX_SPECIAL_CHARACTERS)]


class TokenizerPut(msgspec.Struct, forbid_unknown_fields=True):
    """The tokenizer of one model, as its engines load it. `model` and `tokenizer` have no default."""

    model: ModelName | msgspec.UnsetType = msgspec.UNSET
    """Required: model name with which engines attach. A model has at most one tokenizer."""
    tokenizer: dict[str, Any] | str | msgspec.UnsetType = msgspec.UNSET
    """Required: the Hugging Face `tokenizer.json`, as an object or as the file's text; at most 32 MiB."""
    chat_template: Annotated[str, text(NO_NUL)] | None = None
    """Jinja template that renders `messages`; its variables are `messages`, `add_generation_prompt` and the special
    tokens."""
    special_tokens: Annotated[dict[Annotated[str, text(VARIABLE)], SpecialToken], Meta(max_length=64)] | None = None
    """Special tokens for the template, such as `bos_token` and `eos_token`."""
    add_special_tokens: bool = True
    """Let the tokenizer add its special tokens to a `text`, as engines do for completions. For `messages`, only the
    template adds special tokens."""
    note: Note = ""

    REQUIRED: ClassVar = ("model", "tokenizer")


class TokenizerAnswer(msgspec.Struct, frozen=True):
    """A tokenizer without its file."""

    name: str
    model: str
    digest: str
    """SHA-256 of the tokenizer.json, in hex."""
    chat_template: str | None
    special_tokens: dict[str, str] | None
    add_special_tokens: bool
    note: str
    revision: int
    etag: str
    """ETag for `If-Match`."""
    created_at: float
    updated_at: float


class TokenizerList(Page, frozen=True):
    items: list[TokenizerAnswer]


class TokenizerUsed(msgspec.Struct, frozen=True):
    """The tokenizer that encoded a text."""

    name: str
    digest: str
    """SHA-256 of its tokenizer.json, in hex."""
