"""`docs/reference/settings.md`, from the structs of the settings: names, environment variables, defaults, meanings."""

from __future__ import annotations

from typing import Any

import msgspec

from app.descriptions import descriptions
from app.settings import AppSettings
from dataplane.base.settings import (
    CONFIG_VARIABLE,
    PREFIX,
    SETUP_VARIABLE,
    TIMEOUT_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    Common,
    Secret,
    SecretUrl,
)
from dataplane.settings import DataPlaneTable

TABLES: tuple[tuple[str, str, type[msgspec.Struct]], ...] = (
    ("", "Shared by both planes, at the top of the file", Common),
    ("app", "`[app]`: the management plane", AppSettings),
    ("dataplane", "`[dataplane]`: the data plane", DataPlaneTable),
)


def page(note: str) -> str:
    lines = [
        "# Settings",
        "",
        note,
        "",
        "Settings come from `larder.toml` (or the file that `--config` or `LARDER_CONFIG` names) and from the "
        "environment, which takes precedence. Sizes may be written as `4GiB`. `larder up --print-config` and "
        "`python -m dataplane --print-config` show the settings in force. An unknown name is an error. Secrets are "
        "never printed or logged.",
    ]
    lines += [
        "",
        "## Command line only",
        "",
        "| environment | default | means |",
        "|---|---|---|",
        f"| `{URL_VARIABLE}` | from `http_host` and `http_port` | URL of the API, such as `http://127.0.0.1:8470`; "
        "`--url` takes precedence. |",
        f"| `{TOKEN_VARIABLE}` | the token of `larder login` | API token. **Secret.** |",
        f"| `{SETUP_VARIABLE}` | | Setup token for `larder login --setup`. **Secret.** |",
        f"| `{TIMEOUT_VARIABLE}` | `60s` | Time to wait for a response; `--timeout` takes precedence. |",
        f"| `{CONFIG_VARIABLE}` | `larder.toml` | Settings file. |",
    ]
    for section, title, kind in TABLES:
        lines += ["", f"## {title}", "", "| name | environment | default | means |", "|---|---|---|---|"]
        described = descriptions(kind)
        for field in msgspec.structs.fields(kind):
            full = f"{section}.{field.name}" if section else field.name
            variable = PREFIX + full.replace(".", "__").upper()
            means = described[field.name].replace("|", "\\|")
            secret = " **Secret.**" if field.type in (Secret, SecretUrl) else ""
            lines.append(f"| `{field.name}` | `{variable}` | {_default(field)} | {means}{secret} |")
    return "\n".join(lines) + "\n"


def _default(field: Any) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else None
    if value is None and field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and field.name.endswith("_bytes") and value % 1024 == 0 and value:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value % size == 0:
                return f"`{value // size}{unit}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
