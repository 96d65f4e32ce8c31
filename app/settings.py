"""Settings of the management plane: plain values, read once by the command that starts it.

The README lists the shared settings (`Common`). This module holds the table `[app]` of `larder.toml`, also set by
environment variables `LARDER_APP__…`.
"""

import ipaddress
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from dataplane.base import settings as shared
from dataplane.base.addresses import ip_of, is_host
from dataplane.base.secret_file import SecretFileExposed, read_secret
from dataplane.base.settings import Between, Common, Secret, SettingsError, check_ranges, read
from dataplane.protocol.join import MAX_ADDRESSES, WILDCARD_HOSTS, host_of, url_fault

ADMIN_TOKEN_CHARACTERS = 32
MIN_RETIRE_S = 60
MAX_TOKEN_CHARACTERS = 512
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AppSettings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The `[app]` table."""

    embedded_data_plane: bool = True
    """Start and supervise a data plane; false: connect to the data plane that runs at the control URL."""
    data_plane_survives: bool = True
    """Keep the embedded data plane running when this process is killed; the next `larder up` connects to it."""
    standby: bool = True
    """Keep a standby process ready that takes over within milliseconds when the data plane is killed."""
    auth: Literal["auto", "required"] = "auto"
    """`auto`: requests to a loopback address need no token until one exists; `required`: every request needs a
    token."""
    admin_token: Secret = ""
    """A token of at least 32 characters that always has the role admin; prefer `admin_token_file`. Never stored."""
    admin_token_file: str = ""
    """File that contains the admin token."""
    trusted_proxies: str = ""
    """Comma-separated addresses or networks whose X-Forwarded-For and X-Forwarded-Proto headers are trusted."""
    anonymous_metrics: bool = False
    """Serve `/metrics`, which names tenants, without a token; false: once a token exists, the role viewer is
    required."""
    anonymous_health: bool = True
    """Serve `/healthz`, `/readyz` and `/healthz/fleet` without a token, but without names; false: they require the role
    viewer, too, and the chart's probe, which has no token, fails."""
    streams_per_token: Annotated[int, Between(1, 1_000_000)] = 100
    """Event streams and waiting requests that one token may have open at once, including those of its sessions; more
    get 429."""
    streams_per_session: Annotated[int, Between(1, 1_000_000)] = 16
    """The same limit for one browser session."""
    streams_per_address: Annotated[int, Between(1, 1_000_000)] = 256
    """The same limit for one address (for IPv6: one /64 network)."""
    allowed_hosts: str = ""
    """Comma-separated names that the Host header may have besides localhost and IP addresses."""
    allowed_origins: str = ""
    """Comma-separated origins whose pages may call the API, besides the dashboard's own origin."""
    body_limit_bytes: Annotated[int, Between(1024, 1 << 30)] = 16 << 20
    """Largest accepted request body."""
    body_budget_bytes: Annotated[int, Between(1024, 1 << 36)] = 64 << 20
    """Memory for all request bodies that arrive or are processed at the same time, beyond 16 KiB of each. One body may
    use all of it, those of several callers three quarters, and several of one caller a quarter."""
    pins_per_tenant: Annotated[int, Between(0, 100_000)] = 10_000
    """Pins per tenant that tokens limited to tenants may create; admins may exceed this limit."""
    join_url: str = ""
    """Endpoint of the enrolment socket for data planes on other machines, such as `tcp://0.0.0.0:8471`; empty: none."""
    join_addresses: str = ""
    """Comma-separated addresses of the enrolment socket that join tokens contain; the default follows from
    `join_url`."""
    curve_key_file: str = ""
    """File with the secret CURVE key of this management plane (40 characters, Z85). The default is `manager.key` in the
    state directory, created at the first start. Managers that share a database share one key."""
    apply_limit_bytes: Annotated[int, Between(1024, 1 << 30)] = 64 << 20
    """Largest accepted document, as a request body or as a file."""
    apply_file: str = ""
    """A document (see docs/operate/as-code.md) that is applied at every start, on SIGHUP, and when the file changes."""
    apply_prune: bool = False
    """Delete records of the file's owner that the file no longer contains."""
    push_timeout_s: Annotated[float, Between(0.05, 600)] = 5.0
    """Seconds within which a node must answer a snapshot."""
    node_lost_s: Annotated[float, Between(0.1, 3600)] = 3.0
    """Seconds of silence after which a node counts as lost; nodes publish every half second."""
    retire_nodes_after_s: Annotated[float, Between(0, 365 * 86_400)] = 0.0
    """Seconds after which a node that joined and is lost is forgotten, as by `larder nodes delete`; 0: never, else at
    least 60. Its name is free again then; to come back, it must join with a token. A manager counts from its own start,
    or from when it found the node lost, and forgets none while all joined nodes are lost."""
    condition_kept_s: Annotated[float, Between(0, 31 * 86_400)] = 600.0
    """Seconds for which a condition of a node, such as a crash loop, stays visible after it ended."""
    shutdown_grace_s: Annotated[float, Between(0, 600)] = 2.0
    """Seconds that open requests, and then the data plane, get to finish before they are cut off. With the default,
    `larder up` exits within 5 s, also with open event streams and while neither the database nor the collector of
    traces answers; if something hangs, within twice this time plus 10 s."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity of log lines that are written."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto`: columns on a terminal, JSON lines elsewhere."""
    usage_poll_interval_s: Annotated[float, Between(0.1, 3600)] = 5.0
    """Seconds between requests for the usage of tenants; at most this much usage is lost when a data plane is
    killed."""
    usage_write_interval_s: Annotated[float, Between(0.1, 3600)] = 30.0
    """Seconds between writes of usage to the database."""
    events_retention_days: Annotated[float, Between(1, 36_500)] = 30.0
    """Days after which events, and alerts that ended, are deleted."""
    alert_expire_s: Annotated[float, Between(1, 31 * 86_400)] = 18_000.0
    """Seconds after which a firing alert that is not sent again and names no end counts as ended. Use more than the
    repeat interval of Alertmanager or Grafana (4 h)."""
    alert_changes_s: Annotated[float, Between(0, 31 * 86_400)] = 3600.0
    """Period in seconds before the start of an alert whose changes are shown with it."""
    max_kept_pushes: Annotated[int, Between(100, 10_000_000)] = 10_000
    """Number of pushes that are kept; older ones are deleted."""
    usage_retention_days: Annotated[float, Between(1, 36_500)] = 400.0
    """Days after which usage is deleted."""
    lmcache_api: bool = True
    """Serve the paths of LMCache's HTTP interface, such as `/quota` and `/cache/clear`, for its command line."""
    lmcache_metrics: bool = True
    """Also export metrics under the names of their LMCache equivalents, for nodes that serve LMCache clients."""
    web_dist: str = ""
    """Folder of the built dashboard; the default is `web/dist` beside the code."""


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    """All settings of a management plane."""

    common: Common
    app: AppSettings

    @property
    def state_dir(self) -> Path:
        return Path(self.common.state_dir)


def load(config: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings from the file and the environment. Raises SettingsError."""
    common, app = read("app", AppSettings, config=config, environ=environ)
    _check(common, app)
    return Settings(common=common, app=app)


def _check(common: Common, app: AppSettings) -> None:
    """Check ranges and formats. Raises SettingsError."""
    check_ranges(common)
    check_ranges(app, "app.")
    if not is_host(common.http_host):
        raise SettingsError(f"http_host: expected an IP address or the name of a host, got {common.http_host!r}")
    if 0 < app.retire_nodes_after_s < MIN_RETIRE_S:
        raise SettingsError(
            f"app.retire_nodes_after_s: expected 0 or at least {MIN_RETIRE_S}, got {app.retire_nodes_after_s}"
        )
    largest = max(app.body_limit_bytes, app.apply_limit_bytes)
    if app.body_budget_bytes < largest:
        raise SettingsError(
            f"app.body_budget_bytes: expected at least {largest}, the larger of app.body_limit_bytes and "
            f"app.apply_limit_bytes, got {app.body_budget_bytes}"
        )
    _check_admin_token("app.admin_token", app.admin_token)
    proxies(app)
    join_addresses(app)
    if app.join_url and not app.join_url.startswith(("tcp://", "ipc://")):
        raise SettingsError(f"app.join_url: expected an endpoint such as tcp://0.0.0.0:8471, got {app.join_url!r}")


def admin_token(app: AppSettings) -> str:
    """Return the configured admin token, or an empty string. Raises SettingsError, which never contains the token."""
    if not app.admin_token_file:
        return app.admin_token
    if app.admin_token:
        raise SettingsError("app.admin_token: expected at most one of it and app.admin_token_file")
    name = f"app.admin_token_file {app.admin_token_file}"
    try:
        token = read_secret(Path(app.admin_token_file).expanduser()).decode().strip()
    except SecretFileExposed as error:
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
    """Check the length and the characters of a token. Raises SettingsError."""
    if token and not ADMIN_TOKEN_CHARACTERS <= len(token) <= MAX_TOKEN_CHARACTERS:
        raise SettingsError(
            f"{name}: expected {ADMIN_TOKEN_CHARACTERS} to {MAX_TOKEN_CHARACTERS} characters, got {len(token)}"
        )
    if not all("!" <= character <= "~" for character in token):
        raise SettingsError(f"{name}: expected printable ASCII characters without spaces")


def without_secrets(settings: Settings) -> Settings:
    """Return a copy for display, with secrets replaced."""
    return Settings(common=shared.without_secrets(settings.common), app=shared.without_secrets(settings.app))


def requires_token(settings: Settings) -> bool:
    """Return whether requests need a token even before one exists: `auth` says so, or other machines can send them."""
    app = settings.app
    return app.auth == "required" or not is_loopback(settings.common.http_host) or bool(app.trusted_proxies)


def check_bind(settings: Settings, *, tokens_exist: bool) -> None:
    """Raise SettingsError if other machines could reach an API that has no token yet: the first caller could create the
    first token."""
    host = settings.common.http_host
    if is_loopback(host) or tokens_exist or admin_token(settings.app):
        return
    raise SettingsError(
        f"http_host {host!r} can be reached from other machines, and there is no token yet: start on 127.0.0.1 once "
        "and make one ('larder tokens create --role admin'), or give one with LARDER_APP__ADMIN_TOKEN_FILE or "
        "LARDER_APP__ADMIN_TOKEN (at least 32 characters, such as from 'openssl rand -hex 32')"
    )


def join_addresses(app: AppSettings) -> tuple[str, ...]:
    """Return the configured addresses of the enrolment socket. Raises SettingsError."""
    addresses = tuple(part.strip() for part in app.join_addresses.split(",") if part.strip())
    if len(addresses) > MAX_ADDRESSES:
        raise SettingsError(f"app.join_addresses: expected at most {MAX_ADDRESSES}, got {len(addresses)}")
    for address in addresses:
        fault = url_fault(address)
        if not fault and host_of(address) in WILDCARD_HOSTS:
            fault = f"expected an address that nodes can reach, got {address!r}"
        if fault:
            raise SettingsError(f"app.join_addresses: {fault}")
    return addresses


def proxies(app: AppSettings) -> tuple[Network, ...]:
    """Return the networks of trusted proxies. Raises SettingsError."""
    networks = []
    for text in filter(None, (part.strip() for part in app.trusted_proxies.split(","))):
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError:
            raise SettingsError(
                f"app.trusted_proxies: expected addresses or networks such as 10.0.0.0/8, got {text[:60]!r}"
            ) from None
    return tuple(networks)


def resolved(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Return the family and the address at which a server on this host listens. Raises OSError."""
    if not host:
        return socket.AF_INET, ("", port)
    address_infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(address_infos, key=lambda info: info[0] != socket.AF_INET)
    return family, address


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address; a name other than localhost counts as reachable."""
    address = ip_of(host)
    return host == "localhost" or (address is not None and address.is_loopback)
