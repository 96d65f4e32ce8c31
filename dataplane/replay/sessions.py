"""Made-up requests of three tenants that behave differently, without end and always the same for the same seed.

* `chat`: conversations that grow turn by turn; the newest are the likeliest to go on.
* `support`: every prompt starts with the same long system prompt and ends with something of its own.
* `scanner`: prompts that never come again; under plain LRU they push everybody else out.
"""

from collections.abc import Callable, Iterator
from random import Random

from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS, chain, next_key, root_key
from dataplane.protocol.layout import U64, pack_keys

CHAT, SUPPORT, SCANNER = "chat", "support", "scanner"
SYSTEM_PROMPT_BLOCKS = 32

_CHUNK_BYTES = 4 * DEFAULT_CHUNK_TOKENS


def system_prompt() -> list[int]:
    """Token ids of the prompt that all requests of `support` start with."""
    random = Random("system prompt")
    return [random.randrange(128_000) for _ in range(SYSTEM_PROMPT_BLOCKS * DEFAULT_CHUNK_TOKENS)]


def chat(random: Random) -> Iterator[U64]:
    """Conversations: 24 at a time, one to four more blocks a turn, over after about 48 blocks."""
    open_chats: list[list[bytes]] = []
    while True:
        # An exponential choice from the back: the conversation that spoke last is the likeliest to speak again.
        back = int(random.expovariate(1 / 6))
        if back >= len(open_chats) or len(open_chats) < 4:
            conversation: list[bytes] = []
            if len(open_chats) >= 24:
                open_chats.pop(0)
        else:
            conversation = open_chats.pop(-1 - back)
        _extend(conversation, CHAT, random, random.randint(1, 4))
        if len(conversation) < 48:
            open_chats.append(conversation)
        yield pack_keys(conversation)


def support(random: Random) -> Iterator[U64]:
    """The system prompt, then one to six blocks of a question."""
    system = chain(system_prompt(), SUPPORT)
    while True:
        keys = list(system)
        _extend(keys, SUPPORT, random, random.randint(1, 6))
        yield pack_keys(keys)


def scanner(random: Random) -> Iterator[U64]:
    """Between 16 and 64 blocks that nobody asks for again."""
    while True:
        keys: list[bytes] = []
        _extend(keys, SCANNER, random, random.randint(16, 64))
        yield pack_keys(keys)


WORKLOADS: dict[str, Callable[[Random], Iterator[U64]]] = {CHAT: chat, SUPPORT: support, SCANNER: scanner}
"""Packed keys [n, 4] of one request after the other, by tenant."""


def _extend(keys: list[bytes], salt: str, random: Random, blocks: int) -> None:
    key = keys[-1] if keys else root_key(salt)
    for _ in range(blocks):
        key = next_key(key, random.randbytes(_CHUNK_BYTES))
        keys.append(key)
