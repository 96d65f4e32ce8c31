"""What callers prove themselves with: how tokens look, and the hashes that are kept of secrets.

A token is `larder_<id>_<secret>`: the id is public and names it in lists and in the audit, the secret is 256 random
bits. Of secrets only keyed BLAKE3 hashes are stored: a secret that cannot be guessed needs no slow hash. The key is
made from a random secret that the database keeps and tells nobody, so a hash means nothing in another one, and nobody
can compute one who has not read the database.
"""

import hmac
import re
import secrets
from dataclasses import dataclass

from blake3 import blake3

SETUP_ID = "setup"
"""Of the one-time token that makes the first token of an admin."""
MAX_CHARACTERS = 512
"""A longer credential is nobody's."""
_TOKEN = re.compile(r"larder_([0-9a-z]{1,32})_([0-9a-f]{64})", re.ASCII)
_COOKIE = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class Presented:
    """A token, taken apart."""

    id: str
    secret: str

    @property
    def text(self) -> str:
        return f"larder_{self.id}_{self.secret}"


def new_token(token_id: str = "") -> Presented:
    """With a random id when none is given."""
    return Presented(token_id or secrets.token_hex(6), secrets.token_hex(32))


def parsed(text: str) -> Presented | None:
    """None for what no token of ours looks like."""
    match = _TOKEN.fullmatch(text)
    return None if match is None else Presented(match[1], match[2])


def new_cookie() -> str:
    return secrets.token_hex(32)


def is_cookie(text: str) -> bool:
    return _COOKIE.fullmatch(text) is not None


class Hasher:
    """Hashes of one database's secrets, as hex; those of different kinds never meet.

    Each is a hash of a hash. The inner one, keyed with the database's name, is what was kept before there was a secret;
    the migration that made the secret hashed what it found once more, and asked nobody for a token.
    """

    def __init__(self, store_id: str, secret: str) -> None:
        self._inner = _key(store_id, "larder 2026-11-21 secrets of callers")
        self._outer = _key(secret, "larder 2026-11-21 hashes of callers")

    def token(self, token: Presented) -> str:
        return self._hash(f"token {token.id} {token.secret}")

    def configured(self, text: str) -> str:
        """Of the token of an admin that the settings give."""
        return self._hash(f"configured {text}")

    def session(self, cookie: str) -> str:
        return self._hash(f"session {cookie}")

    def csrf(self, cookie: str) -> str:
        """What the page that owns a session sends along; it cannot be found without the cookie."""
        return self._hash(f"csrf {cookie}")

    def _hash(self, text: str) -> str:
        inner = blake3(text.encode(), key=self._inner).hexdigest()
        return blake3(inner.encode(), key=self._outer).hexdigest()


def _key(material: str, context: str) -> bytes:
    return blake3(material.encode(), derive_key_context=context).digest()


def same(one: str, other: str) -> bool:
    """In a time that does not tell where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())
