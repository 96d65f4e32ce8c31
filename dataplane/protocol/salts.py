"""Rules for `cache_salt`, which determines the owner of a key; the same on every interface.

The empty salt is a tenant of its own, shown as `_default`; that name is therefore not a valid salt.
"""

import re

from dataplane.protocol.codes import Code, ProtocolError

MAX_SALT_CHARACTERS = 128
_UNFIT = r"\x00-\x1f\x7f-\x9f@/\\"
SALT = rf"[^{_UNFIT}]{{1,{MAX_SALT_CHARACTERS}}}"
"""Pattern of a salt that is not empty, and of a tenant as shown."""
_WRONG = re.compile(rf"[{_UNFIT}\ud800-\udfff]")
DEFAULT_TENANT = "_default"


def check_salt(salt: str, field: str = "tenant") -> str:
    """Return the salt, or raise `ProtocolError(BAD_SALT)` that says what is wrong with it."""
    if not isinstance(salt, str):
        raise ProtocolError(Code.BAD_SALT, f"expected text, got {type(salt).__name__}", field)
    if len(salt) > MAX_SALT_CHARACTERS:
        raise ProtocolError(Code.BAD_SALT, f"expected at most {MAX_SALT_CHARACTERS} characters, got {len(salt)}", field)
    if salt == DEFAULT_TENANT:
        raise ProtocolError(Code.BAD_SALT, f"{DEFAULT_TENANT!r} is how the empty salt is shown; send ''", field)
    if wrong := _WRONG.search(salt):
        raise ProtocolError(
            Code.BAD_SALT, f"expected no control characters and none of '@', '/', '\\', found {wrong[0]!r}", field
        )
    return salt


def shown(salt: str) -> str:
    """Return the tenant's display name: the salt, or `_default` for the empty one."""
    return salt or DEFAULT_TENANT


def salt_of(name: str, field: str = "tenant") -> str:
    """Return the checked salt of a display name."""
    return "" if name == DEFAULT_TENANT else check_salt(name, field)
