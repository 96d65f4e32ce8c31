"""What is asked of the process, and what it answers: MessagePack on its standard input and output."""

from typing import Any

import msgspec

MAX_CHARACTERS = 4 << 20
"""Of a text, of all messages together, and of what a template makes of them."""
MAX_TEMPLATE_CHARACTERS = 256 << 10
CPU_S = 10
"""Processor seconds of one job."""
WALL_S = 30.0
MEMORY_BYTES = 4 << 30
"""Address space of one job."""


class Job(msgspec.Struct):
    """Encode a text, or messages by a chat template; with neither, only see whether the files are good."""

    file: bytes
    """A tokenizer.json."""
    template: str | None = None
    """A chat template, Jinja."""
    special_tokens: dict[str, str] = {}
    """Such as `bos_token`: variables of the template."""
    add_special_tokens: bool = True
    """As the tokenizer does around a text. Around messages the template says what stands there."""
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = False


class Done(msgspec.Struct, tag="done"):
    tokens: bytes
    """Token ids as u32, little-endian."""
    vocabulary: int
    """Tokens that the tokenizer knows."""


class Failed(msgspec.Struct, tag="failed"):
    field: str
    """`tokenizer`, `chat_template`, `text` or `messages`."""
    message: str


Answer = Done | Failed
