"""Tokens that `larder login` stores for this user, by the URL of the Larder server:
`~/.config/larder/credentials.json`."""

import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import click

from dataplane.base.secret_file import SecretFileExposed, read_secret


def path() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "larder" / "credentials.json"


def get(url: str) -> str:
    """Return the stored token of a URL, or an empty string. Raises ClickException if the file cannot be read."""
    return _read().get(_key(url), "")


def put(url: str, token: str) -> Path:
    """Store the token in a file that other users cannot read, and return its path. Raises ClickException."""
    _write({**_read(), _key(url): token})
    return path()


def drop(url: str) -> bool:
    """Delete the stored token. Return whether there was one. Raises ClickException."""
    kept = _read()
    if _key(url) not in kept:
        return False
    del kept[_key(url)]
    _write(kept)
    return True


def _key(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def _read() -> dict[str, str]:
    try:
        kept = json.loads(read_secret(path()))
    except SecretFileExposed as error:
        raise click.ClickException(str(error)) from None
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise click.ClickException(f"{path()} cannot be read: {error.strerror}") from None
    except ValueError:
        raise click.ClickException(
            f"{path()} is not JSON; 'larder login' writes a new one once it is gone"
        ) from None
    if not isinstance(kept, dict) or not all(isinstance(token, str) for token in kept.values()):
        raise click.ClickException(f"{path()}: expected a JSON object of URLs and their tokens")
    return kept


def _write(kept: dict[str, str]) -> None:
    file = path()
    made = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            json.dump(kept, out, indent=2, sort_keys=True)
            out.write("\n")
        made.replace(file)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from None
