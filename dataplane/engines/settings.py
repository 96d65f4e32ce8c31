"""Settings of connectors: the keys `larder.*` among an engine's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from dataplane.base.settings import Common, with_defaults

PREFIX = "larder."


Settings = TypeVar("Settings", bound=msgspec.Struct)


def read(kind: type[Settings], extra: Mapping[str, Any], container: str, choices: Mapping[str, str]) -> Settings:
    """Return the settings in `extra`, which the engine calls `container`. Raise ValueError, whose message names the key
    and the expected value.

    Keys without the prefix `larder.` belong to other programs and are ignored. `choices` says which values a setting
    may have, for errors in which msgspec does not say so.
    """
    values = {key.removeprefix(PREFIX): value for key, value in extra.items() if key.startswith(PREFIX)}
    setting_names = [field.name for field in msgspec.structs.fields(kind)]
    unknown = sorted(values.keys() - {*setting_names})
    if unknown:
        listed = ", ".join(PREFIX + name for name in setting_names)
        raise ValueError(f"{container}.{PREFIX}{unknown[0]}: unknown; expected one of {listed}")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        name = path.rstrip("`")
        choice = choices.get(name)
        expected = f"expected {choice}, got {values[name]!r}" if choice else problem[:1].lower() + problem[1:]
        raise ValueError(f"{container}.{PREFIX}{name}: {expected}") from None


def default_socket(environ: Mapping[str, str] = os.environ) -> str:
    """Return LARDER_ENGINE_SOCKET, else the socket in LARDER_STATE_DIR, else the default socket of the user."""
    common = Common(
        state_dir=environ.get("LARDER_STATE_DIR", ""), engine_socket=environ.get("LARDER_ENGINE_SOCKET", "")
    )
    return with_defaults(common, environ).engine_socket
