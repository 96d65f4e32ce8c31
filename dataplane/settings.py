"""Settings of the data plane process: the shared settings and the `[dataplane]` table."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

import msgspec

from dataplane.base import labels as label_rules
from dataplane.base import settings as shared
from dataplane.base.settings import Common, SettingsError
from dataplane.memory.named import MAX_NAME_CHARACTERS
from dataplane.memory.pages import (
    HUGE_BYTES,
    PAGE_BYTES,
    available_bytes,
    huge_bytes_available,
    huge_pages_reserved,
    lock_limit_bytes,
)
from dataplane.protocol.join import JOINED_FILE, is_loopback, url_fault
from dataplane.protocol.layout import MAX_BLOCKS

MIN_GPU_POOL_BYTES = 2 << 20
_SHM_NAME = re.compile(rf"[A-Za-z0-9._-]{{0,{MAX_NAME_CHARACTERS}}}")


class DataPlaneTable(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Settings in the `[dataplane]` table; in the environment `LARDER_DATAPLANE__<NAME>`."""

    node: str = ""
    """Name of this node; by default the host's name and a few digits, kept in the state directory."""
    labels: dict[str, str] = {}
    """Labels of this machine, by which records can select nodes: `gpu=h200,zone=a` in the environment."""
    join_token_file: str = ""
    """File with the join token that enrols this node in a fleet; needed once."""
    advertise_control_url: str = ""
    """URL at which the management plane reaches the control socket; by default the socket's own URL, with 0.0.0.0
    replaced by the address from which the node connects."""
    advertise_events_url: str = ""
    """The same for the events socket."""
    segment_bytes: int = 64 << 20
    """Size of one memory segment, 2 MiB to 1 GiB; larger blocks get segments of their own size."""
    max_blocks: int = 0
    """Number of block descriptors; 0 means one per 4 KiB of the pool, at most 1,048,576."""
    reservation_ttl_s: float = 30.0
    """Seconds that an engine may take between reserve and commit."""
    pin_budget_ratio: float = 0.2
    """Share of the pool that guaranteed pins may hold."""
    max_clients: int = 1024
    """Maximum number of attached engine processes."""
    allowed_uids: list[int] = []
    """Uids whose processes may attach, in addition to the data plane's own uid and root."""
    prefault: bool = True
    """Allocate the pages of segments in the background, before first use."""
    prefault_ahead_bytes: int = 1 << 30
    """Memory to keep ready for future segments, within the pool; 0: only for segments in use."""
    huge_pages: bool = False
    """Use 2 MiB pages for segments; the machine must have reserved them (`sysctl vm.nr_hugepages`)."""
    membarrier: bool = True
    """Let engines take leases in shared memory alone, where the kernel supports `membarrier`; false: always by
    message."""
    mlock: bool = False
    """Lock segments into RAM, which RLIMIT_MEMLOCK must allow."""
    lmcache_host: str = "127.0.0.1"
    """Address of the LMCache gateway. Its protocol has no authentication: any peer that reaches it may read, write and
    clear what is cached through it."""
    lmcache_shm_name: str = ""
    """Name of the memory that LMCache clients map, after `/dev/shm/lmcache_l1_pool_`; the default is unique to the
    state directory and host."""
    lmcache_pool_bytes: int = 0
    """Size of that memory: the part of the pool that LMCache clients can fill. 0 means the size of the pool, or the
    free space of `/dev/shm` if that is less. Its pages are allocated as they are needed."""
    lmcache_allow_clear: bool | None = None
    """Whether LMCache clients may clear what is cached through the gateway; by default only if it listens on
    loopback."""
    lmcache_idle_timeout_s: float = 120.0
    """Seconds after which a worker of an LMCache client that has pinged before, or whose connection is gone, is
    considered lost."""
    lmcache_first_ping_timeout_s: float = 3600.0
    """The same for a worker that never pinged."""
    gpu_pool_bytes: int = 0
    """Memory of each GPU for GPU copies of pinned blocks (pins of the tier `gpu`): 2 MiB or more, or 0 for none. It is
    allocated once the first engine asks for GPU copies, and engines must leave room for it."""
    keep_memory_s: float = 120.0
    """Seconds for which the memory outlives a stop (SIGTERM, Ctrl-C): a small process holds it, and a data plane that
    starts within this time has every block. 0 releases the memory when the data plane stops."""
    tick_s: float = 0.05
    """Seconds between drains of the access rings."""
    stats_interval_s: float = 0.5
    """Seconds between published states of the node."""


class DataPlaneSettings(msgspec.Struct, frozen=True):
    """All settings of the process."""

    common: Common
    table: DataPlaneTable

    @property
    def pool_bytes(self) -> int:
        assert self.common.pool_bytes is not None
        return self.common.pool_bytes

    @property
    def lmcache_port(self) -> int:
        """Port of the LMCache gateway; 0: no gateway."""
        port = self.common.lmcache_port
        return shared.DEFAULT_LMCACHE_PORT if port is None else port

    @property
    def lmcache_wanted(self) -> bool:
        """Whether a setting asks for the gateway. If so, a start without it fails; otherwise it may be left out."""
        table = self.table
        asked = self.common.lmcache_port is not None or table.lmcache_pool_bytes or table.lmcache_shm_name
        return bool(self.lmcache_port and asked)

    @property
    def lmcache_allow_clear(self) -> bool:
        allowed = self.table.lmcache_allow_clear
        return ip_address(self.table.lmcache_host).is_loopback if allowed is None else allowed

    @property
    def lmcache_url(self) -> str:
        host = self.table.lmcache_host
        return f"tcp://[{host}]:{self.lmcache_port}" if ":" in host else f"tcp://{host}:{self.lmcache_port}"

    @property
    def lmcache_pool_bytes(self) -> int:
        """Size of the memory that LMCache clients map, if `/dev/shm` has that much."""
        return (self.table.lmcache_pool_bytes or self.pool_bytes) // 4096 * 4096

    @property
    def lmcache_shm_name(self) -> str:
        """Name of that memory, after the prefix that clients expect."""
        # Containers may share /dev/shm while each has its state directory at the same path.
        place = f"{socket.gethostname()}:{os.path.realpath(self.common.state_dir)}"
        return self.table.lmcache_shm_name or f"larder-{sha256(place.encode()).hexdigest()[:12]}"

    @property
    def max_blocks(self) -> int:
        return self.table.max_blocks or max(64, min(1 << 20, self.pool_bytes // 4096))


def load(config: str | None = None, environ: Mapping[str, str] | None = None) -> DataPlaneSettings:
    """Read and check the settings. Raises SettingsError."""
    common, table = shared.read("dataplane", DataPlaneTable, config=config, environ=environ)
    if common.pool_bytes is None:
        default = shared.default_pool_bytes(available_bytes())
        if table.huge_pages:
            default -= default % HUGE_BYTES
        common = msgspec.structs.replace(common, pool_bytes=default)
    settings = DataPlaneSettings(common, table)
    _check(settings)
    return settings


def check_machine(settings: DataPlaneSettings, held_bytes: int = 0) -> None:
    """Check that this machine has the required huge pages and may lock enough memory. `held_bytes` of the pool are
    already in memory taken over from a predecessor.

    Raises SettingsError: a start that asks for huge or locked pages must not silently run without them.
    """
    needed = max(0, settings.pool_bytes - held_bytes)
    if settings.table.huge_pages and (has := huge_bytes_available()) < needed:
        pages, free = needed // HUGE_BYTES, max(0, has) // HUGE_BYTES
        reserved = huge_pages_reserved()
        raise SettingsError(
            f"dataplane.huge_pages: the pool needs {pages} free pages of 2 MiB, and {free} of this machine's "
            f"{reserved} are free: `sysctl vm.nr_hugepages={reserved + pages - free}` reserves them"
        )
    if settings.table.mlock and (limit := lock_limit_bytes()) is not None and limit < settings.pool_bytes:
        raise SettingsError(
            f"dataplane.mlock: the pool needs {settings.pool_bytes} bytes of locked memory, and RLIMIT_MEMLOCK "
            f"allows {limit}: raise it (`ulimit -l`, LimitMEMLOCK= of systemd, --ulimit memlock= of Docker), "
            "or give the process CAP_IPC_LOCK"
        )


def _check(settings: DataPlaneSettings) -> None:
    table = settings.table
    for name, value, low, high in (
        ("pool_bytes", settings.pool_bytes, 4096, 1 << 50),
        ("dataplane.segment_bytes", table.segment_bytes, 2 << 20, 1 << 30),
        ("dataplane.max_blocks", table.max_blocks, 0, MAX_BLOCKS),
        ("dataplane.prefault_ahead_bytes", table.prefault_ahead_bytes, 0, 1 << 50),
        ("dataplane.reservation_ttl_s", table.reservation_ttl_s, 0.01, 86_400),
        ("dataplane.pin_budget_ratio", table.pin_budget_ratio, 0, 0.9),
        ("dataplane.max_clients", table.max_clients, 1, 100_000),
        ("lmcache_port", settings.lmcache_port, 0, 65_535),
        ("dataplane.lmcache_pool_bytes", table.lmcache_pool_bytes, 0, 1 << 50),
        ("dataplane.lmcache_idle_timeout_s", table.lmcache_idle_timeout_s, 0.1, 86_400),
        ("dataplane.lmcache_first_ping_timeout_s", table.lmcache_first_ping_timeout_s, 0.1, 86_400),
        ("dataplane.gpu_pool_bytes", table.gpu_pool_bytes, 0, 1 << 50),
        ("dataplane.keep_memory_s", table.keep_memory_s, 0, 86_400),
        ("dataplane.tick_s", table.tick_s, 0.001, 10),
        ("dataplane.stats_interval_s", table.stats_interval_s, 0.05, 60),
    ):
        if not low <= value <= high:
            raise SettingsError(f"{name}: expected {low} to {high}, got {value}")
    if table.node and (len(table.node) > 64 or not table.node.isprintable()):
        raise SettingsError("dataplane.node: expected at most 64 printable characters")
    _check_lmcache(table)
    if table.segment_bytes % 4096:
        raise SettingsError("dataplane.segment_bytes: expected a multiple of 4096")
    if 0 < table.gpu_pool_bytes < MIN_GPU_POOL_BYTES:
        raise SettingsError(
            f"dataplane.gpu_pool_bytes: expected 0, or {MIN_GPU_POOL_BYTES} or more, got {table.gpu_pool_bytes}"
        )
    if table.huge_pages:
        for name, value in (
            ("pool_bytes", settings.pool_bytes),
            ("dataplane.segment_bytes", table.segment_bytes),
        ):
            if value % HUGE_BYTES or not value:
                raise SettingsError(
                    f"{name}: expected a multiple of 2 MiB, because of dataplane.huge_pages; got {value}"
                )
    if table.mlock and not table.prefault:
        raise SettingsError("dataplane.mlock: needs dataplane.prefault, which takes and locks the pages")
    if fault := label_rules.fault(table.labels):
        raise SettingsError(f"dataplane.labels: {fault}")
    _check_endpoints(settings)


def _check_lmcache(table: DataPlaneTable) -> None:
    if 0 < table.lmcache_pool_bytes < PAGE_BYTES:
        raise SettingsError(
            f"dataplane.lmcache_pool_bytes: expected 0, or {PAGE_BYTES} or more, got {table.lmcache_pool_bytes}"
        )
    try:
        ip_address(table.lmcache_host)
    except ValueError:
        raise SettingsError(
            f"dataplane.lmcache_host: expected an IP address, got {table.lmcache_host!r}"
        ) from None
    if not _SHM_NAME.fullmatch(table.lmcache_shm_name):
        raise SettingsError(
            "dataplane.lmcache_shm_name: expected at most 64 letters, digits, dots, dashes and underscores, "
            f"got {table.lmcache_shm_name!r}"
        )


def joined_file(state_dir: str) -> Path:
    """Return the path of the file with the result of joining a fleet."""
    return Path(state_dir) / JOINED_FILE


def _check_endpoints(settings: DataPlaneSettings) -> None:
    """Raise SettingsError if other machines can reach a socket that does not authenticate peers: the node must have
    joined a fleet, or have a token to join one."""
    common, table = settings.common, settings.table
    joins = bool(table.join_token_file) or joined_file(common.state_dir).exists()
    for name, url in (("control_url", common.control_url), ("events_url", common.events_url)):
        if not url.startswith(("ipc://", "tcp://")):
            raise SettingsError(f"{name}: expected an ipc:// or tcp:// endpoint, got {url!r}")
        if not joins and not is_loopback(url):
            raise SettingsError(
                f"{name}: {url!r} can be reached from other machines, and this node has not joined a fleet, so that it "
                "cannot authenticate peers. Give it a join token (`larder nodes token create` where the "
                "management plane runs, then LARDER_DATAPLANE__JOIN_TOKEN_FILE or --join-token-file here), or use "
                "ipc:// or tcp://127.0.0.1"
            )
    for name, url in (
        ("dataplane.advertise_control_url", table.advertise_control_url),
        ("dataplane.advertise_events_url", table.advertise_events_url),
    ):
        if url and (fault := url_fault(url)):
            raise SettingsError(f"{name}: {fault}")
