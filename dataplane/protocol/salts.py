"""Who owns a key: the `cache_salt` rules, the same at every edge.

The empty salt is a tenant of its own, shown to people as `_default`; that name is therefore not a salt.
"""

import unicodedata

from dataplane.protocol.codes import Code, ProtocolError

MAX_SALT_CHARACTERS = 128
FORBIDDEN = frozenset("@/\\")
DEFAULT_TENANT = "_default"


def check_salt(salt: str, field: str = "tenant") -> str:
    """The salt itself, or `ProtocolError(BAD_SALT)` that says what is wrong with it."""
    if not isinstance(salt, str):
        raise ProtocolError(Code.BAD_SALT, f"expected text, got {type(salt).__name__}", field)
    if len(salt) > MAX_SALT_CHARACTERS:
        raise ProtocolError(
            Code.BAD_SALT, f"expected at most {MAX_SALT_CHARACTERS} characters, got {len(salt)}", field
        )
    if salt == DEFAULT_TENANT:
        raise ProtocolError(
            Code.BAD_SALT, f"{DEFAULT_TENANT!r} is how the empty salt is shown; send ''", field
        )
    for character in salt:
        if character in FORBIDDEN or unicodedata.category(character) in ("Cc", "Cs"):
            raise ProtocolError(
                Code.BAD_SALT,
                f"expected no control characters and none of '@', '/', '\\', found {character!r}",
                field,
            )
    return salt


def shown(salt: str) -> str:
    """The tenant's name for people: the salt, or `_default` for the empty one."""
    return salt or DEFAULT_TENANT


def salt_of(name: str, field: str = "tenant") -> str:
    """The salt behind a shown tenant name; checked."""
    return "" if name == DEFAULT_TENANT else check_salt(name, field)
