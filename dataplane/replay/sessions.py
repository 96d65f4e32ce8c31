"""Artificial requests of three tenants with different behaviour, endless and deterministic for a given seed.

* `chat`: conversations that grow turn by turn; the most recent ones are the most likely to continue.
* `support`: every prompt starts with the same long system prompt and ends with a unique part.
* `scanner`: prompts that are never repeated; under plain LRU they evict the blocks of all other tenants.
"""

from collections.abc import Callable, Iterator
from random import Random

from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS, chain, next_key, root_key
from dataplane.protocol.layout import U64, pack_keys

CHAT, SUPPORT, SCANNER = "chat", "support", "scanner"
SYSTEM_PROMPT_BLOCKS = 32

_CHUNK_BYTES = 4 * DEFAULT_CHUNK_TOKENS


def system_prompt() -> list[int]:
    """Return the token ids of the prompt with which all requests of `support` start."""
    random = Random("system prompt")
    return [random.randrange(128_000) for _ in range(SYSTEM_PROMPT_BLOCKS * DEFAULT_CHUNK_TOKENS)]


def chat(random: Random) -> Iterator[U64]:
    """Yield turns of conversations: 24 at a time, one to four more blocks per turn, ending after about 48 blocks."""
    open_chats: list[list[bytes]] = []
    while True:
        # Exponential choice from the back: the most recently active conversation is the most likely to continue.
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
    """Yield the system prompt followed by one to six blocks of a question."""
    system = chain(system_prompt(), SUPPORT)
    while True:
        keys = list(system)
        _extend(keys, SUPPORT, random, random.randint(1, 6))
        yield pack_keys(keys)


def scanner(random: Random) -> Iterator[U64]:
    """Yield prompts of 16 to 64 blocks that are never requested again."""
    while True:
        keys: list[bytes] = []
        _extend(keys, SCANNER, random, random.randint(16, 64))
        yield pack_keys(keys)


WORKLOADS: dict[str, Callable[[Random], Iterator[U64]]] = {CHAT: chat, SUPPORT: support, SCANNER: scanner}
"""Generators of requests, each as packed keys [n, 4], by tenant."""


def _extend(keys: list[bytes], salt: str, random: Random, blocks: int) -> None:
    key = keys[-1] if keys else root_key(salt)
    for _ in range(blocks):
        key = next_key(key, random.randbytes(_CHUNK_BYTES))
        keys.append(key)
