"""The cookie that holds a browser's session."""

import re

from litestar.datastructures import Cookie

NAME = "larder_session"
SECURE_NAME = f"__Host-{NAME}"
"""Browsers take this one over HTTPS alone, for this host alone and for all of it."""
_PLAIN = re.compile(rf"(?:^|;\s*){NAME}=([^;]*)", re.ASCII)
_SECURE = re.compile(rf"(?:^|;\s*){SECURE_NAME}=([^;]*)", re.ASCII)


def session_cookie(header: str, *, secure: bool) -> str:
    """The session in a Cookie header; empty when there is none."""
    match = (_SECURE if secure else _PLAIN).search(header)
    return "" if match is None else match[1].strip()


def set_session(value: str, seconds: int, *, secure: bool) -> Cookie:
    """What keeps a session in the browser; of 0 seconds: what takes it away."""
    return Cookie(
        key=SECURE_NAME if secure else NAME,
        value=value,
        max_age=seconds,
        path="/",
        httponly=True,
        samesite="strict",
        secure=secure,
    )
