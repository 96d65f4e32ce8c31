"""The cookie that holds the session of a browser."""

import re

from litestar.datastructures import Cookie

NAME = "larder_session"
SECURE_NAME = f"__Host-{NAME}"
"""Name over HTTPS. Browsers accept a `__Host-` cookie over HTTPS only, and bind it to this host and to all its
paths."""
_PLAIN = re.compile(rf"(?:^|;\s*){NAME}=([^;]*)", re.ASCII)
_SECURE = re.compile(rf"(?:^|;\s*){SECURE_NAME}=([^;]*)", re.ASCII)


def session_cookie(header: str, *, secure: bool) -> str:
    """Return the session in a Cookie header, or an empty string."""
    match = (_SECURE if secure else _PLAIN).search(header)
    return "" if match is None else match[1].strip()


def set_session(value: str, seconds: int, *, secure: bool) -> Cookie:
    """Return the cookie that stores a session for `seconds`; 0 seconds deletes it."""
    return Cookie(
        key=SECURE_NAME if secure else NAME,
        value=value,
        max_age=seconds,
        path="/",
        httponly=True,
        samesite="strict",
        secure=secure,
    )
