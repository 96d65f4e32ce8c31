"""Hides secrets in URLs and in texts that people read: messages, log lines, printed settings."""

import re
from urllib.parse import unquote

HIDDEN = "***"
_PARAMETER = re.compile(r"[?&;#]([^?&;=#\s]*)=")
_SECRET_NAME = re.compile("pass|pwd|secret|token|key|sig|credential|auth", re.IGNORECASE)
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:([0-9]*|\*|PORT))?")
_PLACEHOLDER = "PASSWORD"
"""The word for a password in messages that show the form of a URL."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{,30}://\S*[\w/*\]]")
_JOIN_TOKEN = re.compile(r"(larder-join-[0-9]+\.)[\w-]+")


def without_password(url: str) -> str:
    """Return a URL for display, with every part that may be a secret replaced by three stars.

    A password with characters that should have been percent-encoded makes a URL ambiguous: then more is hidden.
    """
    scheme, slashes, address = url.partition("://")
    if not slashes:  # not a URL, so any part of it may be secret
        return HIDDEN if url else ""
    parameter = next((match for match in _PARAMETER.finditer(address) if _SECRET_NAME.search(unquote(match[1]))), None)
    if parameter is None:
        return f"{scheme}://{_without_login(address, scheme)}"
    shown, hidden = address[: parameter.end()], address[parameter.end() :]
    if "@" not in hidden:  # the secret may contain "&", so the whole end is hidden
        return f"{scheme}://{_without_login(shown, scheme)}{HIDDEN}"
    name, colon, _ = shown.partition(":")  # the parameter may be part of a password before a host
    return f"{scheme}://{name}{colon}{HIDDEN}"


def _without_login(address: str, scheme: str) -> str:
    """Return what follows `://`. The name of a user is shown, unless it stands alone: then it may be a token."""
    user, at, host = address.rpartition("@")
    if not at:
        authority = re.split(r"[/?#]", address, maxsplit=1)[0]
        if all(_HOST.fullmatch(part) for part in authority.split(",")):
            return address
        return f"{authority.partition(':')[0]}:{HIDDEN}"  # perhaps a password without a host
    name, colon, password = user.partition(":")
    if colon:
        return f"{name}:{password if password == _PLACEHOLDER else HIDDEN}@{host}"
    return address if scheme.startswith("postgres") else f"{HIDDEN}@{host}"


def redacted(text: str) -> str:
    """Return a text in which secrets of URLs, and join tokens, are replaced by three stars."""
    if "://" in text:
        text = _URL.sub(lambda match: without_password(match[0]), text)
    return _JOIN_TOKEN.sub(rf"\1{HIDDEN}", text)
