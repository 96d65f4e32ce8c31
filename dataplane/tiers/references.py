"""References to secrets in a tier's parameters: `env:NAME` or `file:/path`. A parameter never is the secret itself."""

import os
import stat
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from dataplane.base.secret_file import SecretFileExposed, read_secret
from dataplane.tiers.tier import TierError

Reference = Annotated[str, Meta(pattern=r"^(env:\w+|file:/.+)?$", examples=["env:NAME", "file:/path"])]
"""A reference in the parameters of a tier; empty for none."""

_MAX_CERTIFICATES_BYTES = 4 << 20
_ENVIRONMENT = "env:"
_FILE = "file:"


def read_certificates(field: str, path: str) -> bytes:
    """Return the contents of a file of certificates or keys. Raises TierError, which names the field.

    The file must be a small regular file, because reading a device or a pipe might never end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise TierError(f"{field}: {path}: expected a regular file")
            content = file.read(_MAX_CERTIFICATES_BYTES + 1)
    except OSError as error:
        raise TierError(f"{field}: cannot read {path}: {error.strerror}") from None
    if len(content) > _MAX_CERTIFICATES_BYTES:
        raise TierError(f"{field}: {path}: expected at most {_MAX_CERTIFICATES_BYTES} bytes")
    return content


def resolve(field: str, reference: str) -> str:
    """Return the secret that a reference names; "" for no reference. Raises TierError, which names the field."""
    if not reference:
        return ""
    if reference.startswith(_ENVIRONMENT):
        variable = reference.removeprefix(_ENVIRONMENT)
        secret = os.environ.get(variable, "")
        if not secret:
            raise TierError(f"{field}: the environment variable {variable} is not set")
        return secret
    if not reference.startswith(_FILE):
        raise TierError(f"{field}: expected env:NAME or file:/path")
    path = Path(reference.removeprefix(_FILE))
    try:
        secret = read_secret(path).decode().strip()
    except SecretFileExposed as error:
        raise TierError(f"{field}: {error}") from None
    except OSError as error:
        raise TierError(f"{field}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TierError(f"{field}: {path}: expected UTF-8") from None
    if not secret:
        raise TierError(f"{field}: {path} is empty")
    return secret
