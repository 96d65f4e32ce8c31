"""Finds secrets in settings that clients send: records hold references to secrets, never a secret itself.

A record is shown, logged and audited in full, so a secret in it could not be taken back. Messages about a value that
may be a secret do not repeat it.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

REFERENCE = re.compile(r"env:\w+|file:/.+", re.ASCII)
EXPECTED = "expected a reference to the secret, env:NAME or file:/path: a record never contains a secret"
_WORDS = re.compile(r"[a-z0-9]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_WORDS = frozenset(
    ("password", "passwd", "passphrase", "secret", "secrets", "token", "credential", "credentials", "apikey")
)
_KEYS_OF = frozenset(("access", "account", "api", "private", "secret", "shared", "service", "signing"))
_LOCATIONS = frozenset(("file", "path", "directory"))
_USER_INFO = re.compile(r"^[A-Za-z][\w+.-]*://([^/?#]*|[^/?#:]*:.*)@")


def faults(settings: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield path and message of each value that looks like a secret: text under a name such as `password` that is no
    reference, and addresses with a user or a password in them."""
    for name, value in settings.items():
        yield from _faults(value, f"{path}.{name}", is_secret=names_secret(name))


def names_secret(name: str) -> bool:
    """Return whether text in a field of this name is a secret."""
    words = _WORDS.findall(_CAMEL.sub("_", name).lower())
    if words and words[-1] in _LOCATIONS:
        return False  # `key_file` is a path
    return bool(_SECRET_WORDS.intersection(words)) or any(
        before in _KEYS_OF and word == "key" for before, word in pairwise(words)
    )


def _faults(value: Any, path: str, *, is_secret: bool) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if is_secret and value and REFERENCE.fullmatch(value) is None:
            yield path, EXPECTED
        elif not is_secret and _USER_INFO.match(value):
            yield path, "expected an address without a user and a password: name them by references"
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _faults(item, f"{path}.{name}", is_secret=is_secret or names_secret(str(name)))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _faults(item, f"{path}[{number}]", is_secret=is_secret)
