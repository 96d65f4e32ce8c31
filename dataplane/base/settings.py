"""Settings that both planes share, and the reader of settings: `larder.toml`, then the environment.

The top level of `larder.toml` holds the settings of `Common`; each process has a table of its own (`[dataplane]`,
`[app]`). The environment takes precedence: `LARDER_POOL_BYTES=4GiB`, `LARDER_DATAPLANE__SEGMENT_BYTES=128MiB`. An
unknown name is an error, because otherwise a typing mistake would silently select a default.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin
from urllib.parse import quote

import msgspec

from dataplane.base.addresses import without_brackets
from dataplane.base.field_errors import described
from dataplane.base.redaction import redacted, without_password
from dataplane.base.units import parse_size

T = TypeVar("T", bound=msgspec.Struct)

PREFIX = "LARDER_"
SECTIONS = ("dataplane", "app")
CONFIG_VARIABLE = "LARDER_CONFIG"
MAX_SOCKET_PATH_BYTES = 103
URL_VARIABLE = "LARDER_URL"
"""URL of the API for the command line; not a setting of a process."""
TOKEN_VARIABLE = "LARDER_TOKEN"
"""API token of the command line; not a setting of a process."""
SETUP_VARIABLE = "LARDER_SETUP_TOKEN"
"""Setup token of `larder login --setup`; not a setting of a process."""
TIMEOUT_VARIABLE = "LARDER_TIMEOUT"
"""Time for which the command line waits for an answer."""
_NO_SETTINGS = frozenset({CONFIG_VARIABLE, URL_VARIABLE, TOKEN_VARIABLE, SETUP_VARIABLE, TIMEOUT_VARIABLE})
TEST_VARIABLES = ("LARDER_TEST_", "LARDER_BENCH_")
"""Names under these prefixes belong to test and benchmark runs and are not settings."""
DEFAULT_LMCACHE_PORT = 5555


Secret = Annotated[str, msgspec.Meta(extra={"secret": True})]
"""A setting that is never shown."""
SecretUrl = Annotated[str, msgspec.Meta(extra={"secret_url": True})]
"""A URL that is shown without its password."""


@dataclass(frozen=True)
class Between:
    """Annotation of a setting: its least and its largest value."""

    low: float
    high: float


class SettingsError(Exception):
    """An invalid setting: the message names the setting, its source and the expected value, but no secret."""

    def __init__(self, message: str) -> None:
        super().__init__(redacted(message))


class Common(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Settings that both planes share and that scripts rely on; see the table in the README."""

    http_host: str = "127.0.0.1"
    """Address of the API, the dashboard, `/metrics`, `/healthz` and `/readyz`."""
    http_port: Annotated[int, Between(0, 65_535)] = 8470
    """Port of the HTTP server; 0 takes a free one."""
    engine_socket: str = ""
    """Path of the engine socket; default `$XDG_RUNTIME_DIR/larder/engine.sock`, or under the state directory."""
    control_url: str = ""
    """ZeroMQ endpoint of the control socket; default ipc under the state directory."""
    events_url: str = ""
    """ZeroMQ endpoint of the events; default ipc under the state directory."""
    kv_events_url: str = ""
    """ZeroMQ endpoint of the KV events for routers; default none."""
    database_url: SecretUrl = ""
    """SQLAlchemy URL; default SQLite under the state directory."""
    state_dir: str = ""
    """State directory; default `~/.local/state/larder`."""
    lmcache_port: int | None = None
    """Port of the LMCache gateway, to which vLLM's LMCacheMPConnector and similar clients connect; default 5555, 0 for
    no gateway. If the default port is in use, the node runs without a gateway; an explicitly set port must be free."""
    pool_bytes: int | None = None
    """Size of the L1 pool in bytes (`4GiB` is accepted); default 1 GiB, at most half of the free memory."""


_SIZE_SUFFIX = "_bytes"


def check_ranges(settings: msgspec.Struct, prefix: str = "") -> None:
    """Raise SettingsError for a setting that is not `Between` its bounds."""
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        for note in getattr(field.type, "__metadata__", ()):
            if isinstance(note, Between) and not note.low <= value <= note.high:  # also true for NaN
                raise SettingsError(f"{prefix}{field.name}: expected {note.low} to {note.high}, got {value}")


def read(
    section: str,
    kind: type[T],
    *,
    config: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Common, T]:
    """Return the shared settings and those of one section, from the file named by `config` or LARDER_CONFIG (or
    ./larder.toml if it exists), overridden by the environment. Fills in defaults that depend on the machine.

    Raises SettingsError.
    """
    environ = os.environ if environ is None else environ
    tree, origin = _read_sources(config, environ)
    table = tree.get(section, {})
    shared = {name: value for name, value in tree.items() if name not in SECTIONS}
    common = with_defaults(_convert(shared, Common, "", origin), environ)
    _check_sockets(common)
    return common, _convert(table, kind, f"{section}.", origin)


def read_list(section: str, name: str, environ: Mapping[str, str]) -> list[str] | None:
    """Return one setting of a section that is a list of texts; None if it is not set or not such a list.

    For a process that needs one setting of another process, which checks its settings itself. Raises SettingsError.
    """
    tree, _ = _read_sources(None, environ)
    table = tree.get(section)
    value = table.get(name) if isinstance(table, dict) else None
    if isinstance(value, str):
        return _parts(value)
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else None


class _Origin(msgspec.Struct, frozen=True):
    """Sources of settings, for error messages."""

    file: str
    variables: dict[str, str]
    """Environment variable of each dotted name that was set in the environment."""

    def of(self, name: str) -> str:
        return self.variables.get(name) or f"{name} in {self.file}"


def _check_sockets(common: Common) -> None:
    """Raise SettingsError if a socket path is too long. The limit is 107 bytes, of which the engine socket needs four
    for its temporary name."""
    for name in ("engine_socket", "control_url", "events_url"):
        path = getattr(common, name)
        if name != "engine_socket" and not path.startswith("ipc://"):
            continue
        size = len(os.fsencode(path.removeprefix("ipc://")))
        if size > MAX_SOCKET_PATH_BYTES:
            raise SettingsError(
                f"{name}: expected a path of at most {MAX_SOCKET_PATH_BYTES} bytes, got {size}: {path}; "
                "set a shorter state_dir (LARDER_STATE_DIR)"
            )


def with_defaults(common: Common, environ: Mapping[str, str]) -> Common:
    """Return the settings with every path and URL filled in."""
    state = Path(common.state_dir).expanduser() if common.state_dir else Path("~/.local/state/larder").expanduser()
    state = state.absolute()
    try:
        str(state).encode()
    except UnicodeEncodeError:
        raise SettingsError(f"state_dir: expected UTF-8, got {str(state)!r}") from None
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    sockets = Path(runtime) / "larder" if runtime and not common.state_dir else state
    return msgspec.structs.replace(
        common,
        http_host=without_brackets(common.http_host),
        state_dir=str(state),
        engine_socket=common.engine_socket or str(sockets / "engine.sock"),
        control_url=common.control_url or f"ipc://{state / 'control.sock'}",
        events_url=common.events_url or f"ipc://{state / 'events.sock'}",
        database_url=common.database_url or f"sqlite+aiosqlite:///{quote(f'{state}/larder.db')}",
    )


def to_environ(common: Common) -> dict[str, str]:
    """Return the shared settings as environment variables, for a child process that must use the same."""
    return {
        PREFIX + name.upper(): str(value) for name, value in msgspec.structs.asdict(common).items() if value is not None
    }


def without_secrets(settings: T) -> T:
    """Return settings for display: without secrets, and without the logins of URLs."""
    return msgspec.structs.replace(
        settings,
        **{
            field.name: _shown(field.type, value)
            for field in msgspec.structs.fields(settings)
            if isinstance(value := getattr(settings, field.name), str)
        },
    )


def _shown(kind: Any, value: str) -> str:
    if kind == Secret:
        return "(set)" if value else ""
    return without_password(value) if kind == SecretUrl else redacted(value)


def default_pool_bytes(free_bytes: int) -> int:
    """Return 1 GiB, or half of the free memory if that is less."""
    return min(1 << 30, free_bytes // 2)


def _read_sources(
    config: str | os.PathLike[str] | None, environ: Mapping[str, str]
) -> tuple[dict[str, Any], "_Origin"]:
    """Return the settings of the file, overridden by the environment, before conversion. Raises SettingsError."""
    tree, source = _read_file(config or environ.get(CONFIG_VARIABLE) or None)
    variables: dict[str, str] = {}
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name in _NO_SETTINGS or name.startswith(TEST_VARIABLES):
            continue
        path = name.removeprefix(PREFIX).lower().split("__")
        if len(path) > 2 or (len(path) == 2 and path[0] not in SECTIONS):
            raise SettingsError(f"{name}: unknown setting")
        if len(path) == 2:
            table = tree.setdefault(path[0], {})
            if not isinstance(table, dict):
                raise SettingsError(f"{path[0]}: expected a table in {source}")
            table[path[1]] = text
        else:
            tree[path[0]] = text
        variables[".".join(path)] = name
    return tree, _Origin(source, variables)


def _read_file(config: str | os.PathLike[str] | None) -> tuple[dict[str, Any], str]:
    path = Path(config) if config else Path("larder.toml")
    if not config and not os.path.exists(path):  # False too for a folder that this user cannot search
        return {}, "larder.toml"
    try:
        with path.open("rb") as file:
            return tomllib.load(file), str(path)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from None


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pairs(text: str, name: str) -> dict[str, str]:
    """Parse text such as `gpu=h200,zone=a`. Raises SettingsError."""
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or key.strip() in pairs:
            raise SettingsError(f"{name}: expected key=value pairs between commas, each key once, got {part!r}")
        pairs[key.strip()] = value.strip()
    return pairs


def _convert(tree: dict[str, Any], kind: type[T], prefix: str, origin: _Origin) -> T:
    if not isinstance(tree, dict):
        raise SettingsError(f"{prefix.rstrip('.')}: expected a table in {origin.file}")
    values = dict(tree)
    for name, value in tree.items():
        if name.endswith(_SIZE_SUFFIX) and name in kind.__struct_fields__:
            try:
                values[name] = parse_size(value)
            except ValueError as error:
                raise SettingsError(f"{origin.of(prefix + name)}: {error}") from None
    for field in msgspec.structs.fields(kind):
        text = values.get(field.name)
        if not isinstance(text, str):
            continue
        if get_origin(field.type) is list:  # lists and tables come as text from the environment only
            values[field.name] = _parts(text)
        elif get_origin(field.type) is dict:
            values[field.name] = _pairs(text, origin.of(prefix + field.name))
    unknown = values.keys() - set(kind.__struct_fields__)
    if unknown:
        name = min(unknown)
        close = difflib.get_close_matches(name, kind.__struct_fields__, 1, 0.7)
        hint = f"; did you mean {prefix}{close[0]}?" if close else ""
        raise SettingsError(f"{origin.of(prefix + name)}: unknown setting{hint}")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        path, message = described(str(error), kind)
        raise SettingsError(f"{origin.of((prefix + path).rstrip('.'))}: {message}") from None
