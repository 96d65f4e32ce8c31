"""Credentials: the format of tokens, and the hashes that are stored of secrets.

A token is `larder_<id>_<secret>`: the id is public and names the token in lists and in the audit; the secret is 256
random bits. Only keyed BLAKE3 hashes of secrets are stored: a secret that cannot be guessed needs no slow hash. The key
is derived from a random secret that never leaves the database, so a hash is useless in another database, and computing
one requires reading the database.
"""

import hmac
import re
import secrets
from dataclasses import dataclass

from blake3 import blake3

SETUP_ID = "setup"
"""Id of the one-time token that creates the first admin token."""
MAX_CHARACTERS = 512
"""Largest length of a credential."""
_TOKEN = re.compile(r"larder_([0-9a-z]{1,32})_([0-9a-f]{64})", re.ASCII)
_COOKIE = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class PresentedToken:
    """A parsed token."""

    id: str
    secret: str

    @property
    def text(self) -> str:
        return f"larder_{self.id}_{self.secret}"


def new_token(token_id: str = "") -> PresentedToken:
    """Return a new token, with a random id if none is given."""
    return PresentedToken(token_id or secrets.token_hex(6), secrets.token_hex(32))


def parsed(text: str) -> PresentedToken | None:
    """Return the parsed token; None if the format is wrong."""
    match = _TOKEN.fullmatch(text)
    return None if match is None else PresentedToken(match[1], match[2])


def new_cookie() -> str:
    return secrets.token_hex(32)


def is_cookie(text: str) -> bool:
    return _COOKIE.fullmatch(text) is not None


class Hasher:
    """Hashes of one database's secrets, in hex; hashes of different kinds never collide.

    Each is a hash of a hash. The inner hash, keyed with the database's name, is what was stored before the random
    secret existed. The migration that added the secret hashed the stored hashes once more, so existing tokens stayed
    valid.
    """

    def __init__(self, store_id: str, secret: str) -> None:
        self._inner = _key(store_id, "larder 2026-11-21 secrets of callers")
        self._outer = _key(secret, "larder 2026-11-21 hashes of callers")

    def token(self, token: PresentedToken) -> str:
        return self._hash(f"token {token.id} {token.secret}")

    def configured(self, text: str) -> str:
        """Return the hash of the admin token of the settings."""
        return self._hash(f"configured {text}")

    def session(self, cookie: str) -> str:
        return self._hash(f"session {cookie}")

    def csrf(self, cookie: str) -> str:
        """Return the CSRF token that the page of a session sends; it cannot be computed without the cookie."""
        return self._hash(f"csrf {cookie}")

    def _hash(self, text: str) -> str:
        inner = blake3(text.encode(), key=self._inner).hexdigest()
        return blake3(inner.encode(), key=self._outer).hexdigest()


def _key(material: str, context: str) -> bytes:
    return blake3(material.encode(), derive_key_context=context).digest()


def same(first: str, second: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(first.encode(), second.encode())
