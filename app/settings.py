"""Settings of the management plane: values only, read once by the command that starts it.

The shared names (`Common`) are those of the README; the table here is `[app]` in `larder.toml`, or `LARDER_APP__…`.
"""

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from dataplane.protocol import settings as shared
from dataplane.protocol.join import MAX_ADDRESSES, WILDCARD_HOSTS, host_of, url_fault
from dataplane.protocol.secret_file import OpenToOthers, read_secret
from dataplane.protocol.settings import Common, SettingsError, read

ADMIN_TOKEN_CHARACTERS = 32
MAX_TOKEN_CHARACTERS = 512
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_BY = (
    "start on 127.0.0.1 once and make one ('larder tokens create --role admin'), or give one with "
    "LARDER_APP__ADMIN_TOKEN_FILE or LARDER_APP__ADMIN_TOKEN (at least 32 characters, such as from "
    "'openssl rand -hex 32')"
)


class AppSettings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The `[app]` table."""

    embedded_data_plane: bool = True
    """Start and supervise a data plane; false: connect to the one that runs at the control URL."""
    data_plane_survives: bool = True
    """The embedded data plane goes on serving when this process is killed; the next `larder up` meets it."""
    spare_data_plane: bool = True
    """Keep a second process ready that takes over in milliseconds when the data plane is killed."""
    auth: Literal["auto", "required"] = "auto"
    """`auto`: as long as there is no token, requests to a loopback address need none; `required`: all do."""
    admin_token: str = ""
    """A token that is always an admin's, at least 32 characters; better kept in a file. It is stored nowhere."""
    admin_token_file: str = ""
    """File that holds such a token."""
    trusted_proxies: str = ""
    """Addresses or networks, separated by commas, whose X-Forwarded-For and X-Forwarded-Proto are believed."""
    open_metrics: bool = False
    """`/metrics`, which names tenants, answers everybody; false: as soon as there is a token, a viewer's is needed."""
    open_health: bool = True
    """`/healthz` and `/readyz` answer everybody, without names; false: they need a viewer's token, too."""
    streams_per_token: int = 100
    """Event streams and waiting requests that a token may have open at once, its sessions' included; more are 429."""
    streams_per_session: int = 16
    """The same for one browser that logged in."""
    streams_per_address: int = 256
    """The same for one address (of IPv6: one /64 network)."""
    connections_per_address: int = 1024
    """Connections that one address (of IPv6: one /64 network) may have open; `trusted_proxies` may have more."""
    allowed_hosts: str = ""
    """Names, separated by commas, that the Host header may have besides localhost and IP addresses."""
    allowed_origins: str = ""
    """Origins, separated by commas, whose pages may call the API besides the dashboard's own."""
    body_limit_bytes: int = 16 << 20
    """Largest accepted request body."""
    pins_per_tenant: int = 10_000
    """Pins that tokens which are limited to tenants may make for each of them; admins may make more."""
    join_url: str = ""
    """Endpoint of the join socket, where data planes of other machines ask to be let in, such as
    `tcp://0.0.0.0:8471`; empty: none."""
    join_addresses: str = ""
    """Where nodes reach it, separated by commas, as join tokens say it; default follows from `join_url`."""
    curve_key_file: str = ""
    """File with the secret CURVE key of this management plane (40 characters, Z85); default `manager.key` in the state
    directory, made at the first start. Replicas share one."""
    apply_limit_bytes: int = 64 << 20
    """Largest accepted document, as a request and as a file."""
    apply_file: str = ""
    """A document (see docs/as-code.md) that is applied at every start, on SIGHUP, and when it changes."""
    apply_prune: bool = False
    """Delete records of the file's owner that are not in it any more."""
    push_timeout_s: float = 5.0
    """How long a node may take to answer a snapshot."""
    node_lost_s: float = 3.0
    """A node that was silent this long is lost; nodes publish every half second."""
    shutdown_grace_s: float = 3.0
    """Time for open requests, and then for the data plane, to end before they are cut off; `larder up` ends within
    twice this and 10 s, whatever hangs."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log lines that are written."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto`: columns on a terminal, JSON lines elsewhere."""
    usage_read_s: float = 5.0
    """How often nodes are asked what tenants used: what a killed data plane takes with it at most."""
    usage_write_s: float = 30.0
    """How often that is written to the database."""
    keep_events_days: float = 30.0
    """Older events are forgotten."""
    keep_pushes: int = 10_000
    """So many pushes are kept, the newest."""
    keep_usage_days: float = 400.0
    """Older usage is forgotten."""
    lmcache_api: bool = True
    """Answer at the paths of LMCache's HTTP interface, such as `/quota` and `/cache/clear`, for its command line."""
    lmcache_metrics: bool = True
    """`/metrics` also has LMCache's names for what means the same, of nodes that serve LMCache's clients."""
    web_dist: str = ""
    """Folder of the built dashboard; default `web/dist` beside the code."""


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    """Everything a management plane is started with."""

    common: Common
    app: AppSettings

    @property
    def state_dir(self) -> Path:
        return Path(self.common.state_dir)


def load(config: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from the file and the environment. Raises SettingsError."""
    try:
        common, app = read("app", AppSettings, config=config, environ=environ)
    except SettingsError as error:
        if "allow_open_bind" in str(error).lower():
            raise SettingsError(
                f"app.allow_open_bind is gone since requests are authenticated: {_BY}"
            ) from None
        raise
    _check(common, app)
    return Settings(common=common, app=app)


def _check(common: Common, app: AppSettings) -> None:
    """Raises SettingsError."""
    for name, value, low, high in (
        ("http_port", common.http_port, 0, 65_535),
        ("app.body_limit_bytes", app.body_limit_bytes, 1024, 1 << 30),
        ("app.apply_limit_bytes", app.apply_limit_bytes, 1024, 1 << 30),
        ("app.streams_per_token", app.streams_per_token, 1, 1_000_000),
        ("app.streams_per_session", app.streams_per_session, 1, 1_000_000),
        ("app.streams_per_address", app.streams_per_address, 1, 1_000_000),
        ("app.connections_per_address", app.connections_per_address, 1, 1_000_000),
        ("app.pins_per_tenant", app.pins_per_tenant, 0, 100_000),
        ("app.push_timeout_s", app.push_timeout_s, 0.05, 600),
        ("app.node_lost_s", app.node_lost_s, 0.1, 3600),
        ("app.shutdown_grace_s", app.shutdown_grace_s, 0, 600),
        ("app.usage_read_s", app.usage_read_s, 0.1, 3600),
        ("app.usage_write_s", app.usage_write_s, 0.1, 3600),
        ("app.keep_events_days", app.keep_events_days, 1, 36_500),
        ("app.keep_pushes", app.keep_pushes, 100, 10_000_000),
        ("app.keep_usage_days", app.keep_usage_days, 1, 36_500),
    ):
        if not low <= value <= high:  # false for NaN, too
            raise SettingsError(f"{name}: expected {low} to {high}, got {value}")
    _check_admin_token("app.admin_token", app.admin_token)
    proxies(app)
    join_addresses(app)
    if app.join_url and not app.join_url.startswith(("tcp://", "ipc://")):
        raise SettingsError(
            f"app.join_url: expected an endpoint such as tcp://0.0.0.0:8471, got {app.join_url[:80]!r}"
        )


def admin_token(app: AppSettings) -> str:
    """The configured token of an admin, empty when there is none. Raises SettingsError, which never repeats it."""
    if not app.admin_token_file:
        return app.admin_token
    if app.admin_token:
        raise SettingsError("app.admin_token: expected at most one of it and app.admin_token_file")
    name = f"app.admin_token_file {app.admin_token_file}"
    try:
        token = read_secret(Path(app.admin_token_file).expanduser()).decode().strip()
    except OpenToOthers as error:
        raise SettingsError(f"app.admin_token_file: {error}") from None
    except OSError as error:
        raise SettingsError(f"{name}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{name}: expected text") from None
    if not token:
        raise SettingsError(f"{name}: expected a token, got an empty file")
    _check_admin_token(name, token)
    return token


def _check_admin_token(name: str, token: str) -> None:
    """Raises SettingsError."""
    if token and not ADMIN_TOKEN_CHARACTERS <= len(token) <= MAX_TOKEN_CHARACTERS:
        raise SettingsError(
            f"{name}: expected {ADMIN_TOKEN_CHARACTERS} to {MAX_TOKEN_CHARACTERS} characters, got {len(token)}"
        )
    if not all("!" <= character <= "~" for character in token):
        raise SettingsError(f"{name}: expected printable ASCII characters without spaces")


def without_secrets(settings: Settings) -> Settings:
    """The same for people to look at."""
    app = settings.app
    if app.admin_token:
        app = msgspec.structs.replace(app, admin_token="(set)")
    return msgspec.structs.replace(settings, common=shared.without_secrets(settings.common), app=app)


def check_bind(settings: Settings, *, tokens_exist: bool) -> None:
    """SettingsError when other machines could reach an API for which nobody has a token: whoever came first would
    make the first."""
    host = settings.common.http_host
    if is_loopback(host) or tokens_exist or admin_token(settings.app):
        return
    raise SettingsError(
        f"http_host {host!r} can be reached from other machines, and there is no token yet: {_BY}"
    )


def join_addresses(app: AppSettings) -> tuple[str, ...]:
    """Where nodes reach the join socket, as far as the settings say. Raises SettingsError."""
    found = tuple(part.strip() for part in app.join_addresses.split(",") if part.strip())
    if len(found) > MAX_ADDRESSES:
        raise SettingsError(f"app.join_addresses: expected at most {MAX_ADDRESSES}, got {len(found)}")
    for address in found:
        fault = url_fault(address)
        if not fault and host_of(address) in WILDCARD_HOSTS:
            fault = f"expected an address that nodes can reach, got {address!r}"
        if fault:
            raise SettingsError(f"app.join_addresses: {fault}")
    return found


def proxies(app: AppSettings) -> tuple[Network, ...]:
    """Networks of proxies that are believed. Raises SettingsError."""
    found = []
    for text in filter(None, (part.strip() for part in app.trusted_proxies.split(","))):
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError:
            raise SettingsError(
                f"app.trusted_proxies: expected addresses or networks such as 10.0.0.0/8, got {text[:60]!r}"
            ) from None
    return tuple(found)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address; a name other than localhost counts as open."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
