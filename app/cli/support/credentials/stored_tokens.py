"""Tokens that `larder login` stores for this user, by the URL of the Larder server:
`~/.config/larder/credentials.json`."""

from pathlib import Path
from urllib.parse import urlsplit

from app.cli.support.credentials import private_file


def path() -> Path:
    return private_file.folder() / "credentials.json"


def get(url: str) -> str:
    """Return the stored token of a URL, or an empty string. Raises ClickException if the file cannot be read."""
    return _read().get(_key(url), "")


def put(url: str, token: str) -> Path:
    """Store the token in a file that other users cannot read, and return its path. Raises ClickException."""
    private_file.write(path(), {**_read(), _key(url): token})
    return path()


def drop(url: str) -> bool:
    """Delete the stored token. Return whether there was one. Raises ClickException."""
    stored = _read()
    if _key(url) not in stored:
        return False
    del stored[_key(url)]
    private_file.write(path(), stored)
    return True


def _key(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def _read() -> dict[str, str]:
    expected = "a JSON object of URLs and their tokens"
    return private_file.read(path(), dict[str, str], expected, "'larder login'") or {}
