"""JSON files of this user that hold secrets: in `~/.config/larder`, with mode 0600."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from dataplane.base.secret_file import SecretFileExposed, read_secret
from dataplane.base.units import format_size

T = TypeVar("T")
MAX_BYTES = 1 << 20
"""Enough for thousands of contexts."""


def folder() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "larder"


def read(file: Path, kind: type[T], expected: str, hint: str) -> T | None:
    """Return the content of a file; None if it does not exist. Raises ClickException, also for a file that other users
    can read. `expected` says in words what it contains, `hint` how to make a new one."""
    try:
        content = read_secret(file, MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise click.ClickException(
                f"{file}: expected at most {format_size(MAX_BYTES)}, got more; {hint} writes a new one once it is gone"
            )
        return msgspec.json.decode(content, type=kind)
    except SecretFileExposed as error:
        raise click.ClickException(str(error)) from None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise click.ClickException(f"{file} cannot be read: {error.strerror}") from None
    except msgspec.ValidationError:
        raise click.ClickException(f"{file}: expected {expected}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise click.ClickException(f"{file} is not JSON; {hint} writes a new one once it is gone") from None


def write(file: Path, content: Any) -> None:
    """Replace a file. Raises ClickException."""
    text = json.dumps(content, indent=2, sort_keys=True) + "\n"
    if len(text) > MAX_BYTES:
        raise click.ClickException(
            f"{file}: expected at most {format_size(MAX_BYTES)}, got {format_size(len(text))}; nothing was stored"
        )
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as out:
                out.write(text)
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from None
