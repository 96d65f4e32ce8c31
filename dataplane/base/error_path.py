"""Field paths in the error messages of msgspec."""

import re

_PATH = re.compile(r" - at `(?P<path>[^`]*)`$")


def split_path(message: str) -> tuple[str, str]:
    """Split msgspec's message into (path without the leading `$`, message without the path)."""
    match = _PATH.search(message)
    if match is None:
        return "", message
    return match["path"].removeprefix("$").removeprefix("."), message[: match.start()]
