"""Messages to and from the process: MessagePack on its standard input and output."""

from typing import Any

import msgspec

MAX_CHARACTERS = 4 << 20
"""Limit for a text, for all messages together, and for the output of a template."""
MAX_TEMPLATE_CHARACTERS = 256 << 10
CPU_S = 10
"""CPU seconds of one job."""
WALL_S = 30.0
MEMORY_BYTES = 4 << 30
"""Address space of one job."""


class EncodeJob(msgspec.Struct):
    """A job: encode a text, or messages rendered by a chat template. Without either, only check the files."""

    file: bytes
    """The content of a tokenizer.json."""
    template: str | None = None
    """A chat template in Jinja."""
    special_tokens: dict[str, str] = {}
    """Variables of the template, such as `bos_token`."""
    add_special_tokens: bool = True
    """Whether the tokenizer adds its special tokens around a text. Around messages, the template adds them."""
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = False


class EncodeResult(msgspec.Struct, tag="done"):
    tokens: bytes
    """Token ids as u32, little-endian."""
    vocabulary: int
    """Size of the tokenizer's vocabulary."""


class EncodeError(msgspec.Struct, tag="failed"):
    field: str
    """`tokenizer`, `chat_template`, `text` or `messages`."""
    message: str


Answer = EncodeResult | EncodeError
