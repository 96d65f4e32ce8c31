"""Settings of the management plane: values only, read once by the command that starts it.

The shared names (`Common`) are those of the README; the table here is `[app]` in `larder.toml`, or `LARDER_APP__…`.
"""

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from dataplane.protocol.settings import Common, SettingsError, read


class AppSettings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The `[app]` table."""

    embedded_data_plane: bool = True
    """Start and supervise a data plane; false: connect to the one that runs at the control URL."""
    data_plane_survives: bool = True
    """The embedded data plane goes on serving when this process is killed; the next `larder up` meets it."""
    spare_data_plane: bool = True
    """Keep a second process ready that takes over in milliseconds when the data plane is killed."""
    allow_open_bind: bool = False
    """Allow an http_host that other machines can reach although requests are not authenticated."""
    allowed_hosts: str = ""
    """Names, separated by commas, that the Host header may have besides localhost and IP addresses."""
    allowed_origins: str = ""
    """Origins, separated by commas, whose pages may call the API besides the dashboard's own."""
    body_limit_bytes: int = 16 << 20
    """Largest accepted request body."""
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
    """Time for open requests, and then for the data plane, to end before they are cut off."""
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
    common, app = read("app", AppSettings, config=config, environ=environ)
    _check(common, app)
    return Settings(common=common, app=app)


def _check(common: Common, app: AppSettings) -> None:
    """Raises SettingsError."""
    for name, value, low, high in (
        ("http_port", common.http_port, 0, 65_535),
        ("app.body_limit_bytes", app.body_limit_bytes, 1024, 1 << 30),
        ("app.apply_limit_bytes", app.apply_limit_bytes, 1024, 1 << 30),
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


def check_bind(settings: Settings) -> None:
    """SettingsError when the API, which authenticates nobody, would be open to other machines unasked."""
    host = settings.common.http_host
    if settings.app.allow_open_bind or is_loopback(host):
        return
    raise SettingsError(
        f"http_host {host!r} can be reached from other machines, and Larder does not authenticate requests yet: "
        "anyone there could change quotas and pins. Use 127.0.0.1, or set LARDER_APP__ALLOW_OPEN_BIND=true when "
        "something in front of it lets only the right people through."
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address; a name other than localhost counts as open."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
