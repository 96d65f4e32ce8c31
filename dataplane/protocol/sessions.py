"""Names of sessions, by which requests say which conversation they belong to; the same rule on every interface.

A session belongs to one tenant: the same name in two tenants means two sessions.
"""

import re

from dataplane.protocol.codes import Code, ProtocolError

MAX_SESSION_CHARACTERS = 64
SESSION = rf"(?!\.{{1,2}}$)[A-Za-z0-9._-]{{1,{MAX_SESSION_CHARACTERS}}}"
"""Pattern of a name: it can stand in a URL, and is short, because nodes hold the names of many sessions."""
EXPECTED_SESSION = f"expected 1 to {MAX_SESSION_CHARACTERS} of the characters A-Z a-z 0-9 . _ -, and not '.' or '..'"
_SESSION = re.compile(SESSION)


def is_session(name: str) -> bool:
    """Return whether a text is the name of a session."""
    return len(name) <= MAX_SESSION_CHARACTERS and _SESSION.fullmatch(name) is not None


def check_session(name: str, field: str = "session") -> str:
    """Return the name, or raise `ProtocolError(BAD_FIELD)`."""
    if not is_session(name):
        raise ProtocolError(Code.BAD_FIELD, EXPECTED_SESSION, field)
    return name
