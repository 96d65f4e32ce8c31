"""Settings of the data plane process: the shared settings and the `[dataplane]` table."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dataplane.base import allowed_secrets
from dataplane.base import labels as label_rules
from dataplane.base import settings as shared
from dataplane.base.addresses import host_and_port
from dataplane.base.settings import MAX_SOCKET_PATH_BYTES, Between, Common, SettingsError, check_ranges
from dataplane.base.units import format_size
from dataplane.base.visible import is_printable
from dataplane.memory.named import MAX_NAME_CHARACTERS
from dataplane.memory.pages import (
    HUGE_BYTES,
    PAGE_BYTES,
    available_bytes,
    huge_bytes_available,
    huge_pages_reserved,
    lock_limit_bytes,
    total_bytes,
)
from dataplane.protocol.join import JOINED_FILE, host_of, is_loopback, port_of, url_fault
from dataplane.protocol.spaces import MAX_BLOCK_TOKENS
from dataplane.protocol.states import MAX_BLOCKS

MIN_GPU_POOL_BYTES = 2 << 20
MIN_DISK_TIER_BYTES = 1 << 20
MAX_TOPICS = 64
MAX_TOPIC_CHARACTERS = 256
_MEDIUM = re.compile(r"[A-Za-z0-9._-]{1,64}")
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
    segment_bytes: Annotated[int, Between(2 << 20, 1 << 30)] = 64 << 20
    """Size of one memory segment, 2 MiB to 1 GiB; larger blocks get segments of their own size."""
    max_blocks: Annotated[int, Between(0, MAX_BLOCKS)] = 0
    """Number of block descriptors; 0 means one per 4 KiB of the pool, at most 1,048,576."""
    reservation_ttl_s: Annotated[float, Between(0.01, 86_400)] = 30.0
    """Seconds that an engine may take between reserve and commit."""
    pin_budget_ratio: Annotated[float, Between(0, 0.9)] = 0.2
    """Share of the pool that guaranteed pins may hold."""
    hint_max_s: Annotated[float, Between(0, 31_536_000)] = 3600.0
    """Longest duration in seconds that requests may ask for with the hints `larder.ttl` and `larder.pin`; longer ones
    are shortened. 0: hints have no effect."""
    block_events_per_s: Annotated[int, Between(0, 1_000_000)] = 200
    """Events of stored, evicted, refused and aborted blocks that the node publishes one by one in a second;
    further ones are summed by tenant and reason. 0: all of them."""
    max_clients: Annotated[int, Between(1, 100_000)] = 1024
    """Maximum number of attached engine processes."""
    allowed_uids: list[int] = []
    """Uids whose processes may attach, in addition to the data plane's own uid and root."""
    prefault: bool = True
    """Allocate the pages of segments in the background, before first use."""
    prefault_ahead_bytes: Annotated[int, Between(0, 1 << 50)] = 1 << 30
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
    lmcache_pool_bytes: Annotated[int, Between(0, 1 << 50)] = 0
    """Size of that memory: the part of the pool that LMCache clients can fill. 0 means the size of the pool, or the
    free space of `/dev/shm` if that is less. Its pages are allocated as they are needed."""
    lmcache_allow_clear: bool | None = None
    """Whether LMCache clients may clear what is cached through the gateway; by default only if it listens on
    loopback."""
    lmcache_idle_timeout_s: Annotated[float, Between(0.1, 86_400)] = 120.0
    """Seconds after which a worker of an LMCache client that has pinged before, or whose connection is gone, is
    considered lost."""
    lmcache_first_ping_timeout_s: Annotated[float, Between(0.1, 86_400)] = 3600.0
    """The same for a worker that never pinged."""
    gpu_pool_bytes: Annotated[int, Between(0, 1 << 50)] = 0
    """Memory of each GPU for GPU copies of pinned blocks (pins of the tier `gpu`): 2 MiB or more, or 0 for none. It is
    allocated once the first engine asks for GPU copies, and engines must leave room for it."""
    disk_tier_directories: list[str] = []
    """Directories of the disk tier, which keeps blocks after evictions and reboots; empty: no disk tier. Only this node
    may use them."""
    disk_tier_bytes: Annotated[int, Between(0, 1 << 60)] = 0
    """The most bytes that the disk tier may hold, in all its directories."""
    disk_tier_spill: Literal["commit", "second_touch", "evict", "off"] = "commit"
    """Blocks that are copied to the disk tier: all that are stored, those that are used again, those that are soon
    evicted, or none."""
    tier_directory_blocks: Annotated[int, Between(1024, 1 << 26)] = 1 << 20
    """Blocks for which the tier directory has room, in shared memory: 32 to 64 bytes for each, and more if the disk
    tier of these settings can hold more."""
    tier_cluster: str = "larder"
    """Name of the cluster whose nodes share tiers. Blocks of another cluster are never served."""
    tier_secrets: list[str] = msgspec.field(default_factory=lambda: list(allowed_secrets.DEFAULT))
    """Secrets that records of tiers may name. Each entry is `env:NAME` or `file:/path`; with `*` at its end, it covers
    all variables, or all paths, that begin with the text before it. Nodes refuse records that name other secrets, so
    that operators cannot send any file of this machine to a server that they choose."""
    kv_events_replay_url: str = ""
    """ZeroMQ endpoint from which subscribers request KV events that they missed; default none."""
    kv_events_format: Literal["map", "array"] = "map"
    """Encoding of KV events: `map` as vLLM sends them today, or `array` as older releases did."""
    kv_events_topics: list[str] = []
    """Topics of KV events, in which `{node}` and `{model}` are replaced; default `kv@{node}@{model}`. If a router knows
    engines by their topics, name one for each engine of the node: every event is sent on all of them."""
    kv_events_medium: str = "CPU"
    """Name of the pool's memory in KV events. Consumers treat unknown names as GPU memory."""
    kv_events_token_ids: bool = False
    """Publish the token ids and cache salts of blocks whose engine sends them (LMCache clients). They are prompts, and
    the socket has no authentication."""
    kv_events_remote_token_ids: bool = False
    """Allow `kv_events_token_ids` on an address that other machines reach."""
    kv_events_block_tokens: Annotated[int, Between(0, MAX_BLOCK_TOKENS)] = 0
    """Tokens per block in KV events, for consumers that demand the engine's block size; must divide the tokens of a
    chunk. 0: a block is a chunk."""
    kv_events_ranks: Annotated[int, Between(1, 64)] = 1
    """Number of data-parallel ranks of the node's engines. As with vLLM, each rank has sockets of its own, at the port
    plus the rank, with the same events."""
    kv_events_buffer_steps: Annotated[int, Between(1, 1_000_000)] = 10_000
    """Number of batches of KV events kept for subscribers that missed them, within 64 MiB."""
    kv_events_hwm: Annotated[int, Between(1, 1_000_000)] = 1000
    """Batches that wait for a slow subscriber of KV events before it misses some."""
    keep_memory_s: Annotated[float, Between(0, 86_400)] = 120.0
    """Seconds for which the memory outlives a stop (SIGTERM, Ctrl-C): a small process holds it, and a data plane that
    starts within this time has every block. 0 releases the memory when the data plane stops. After a kill, the memory
    is held for at least 60 seconds."""
    external_holder: bool = False
    """Wait for a holder of the memory that another service or container runs in the state directory, instead of
    starting one that belongs to this service."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity of log lines that are written."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto`: columns on a terminal, JSON lines elsewhere."""
    tick_s: Annotated[float, Between(0.001, 10)] = 0.05
    """Seconds between drains of the access rings."""
    stats_interval_s: Annotated[float, Between(0.05, 60)] = 0.5
    """Seconds between published states of the node."""
    ipc_interval_s: Annotated[float, Between(0, 3600)] = 5.0
    """Seconds between samples of the counters of message queues and object stores in shared memory that belong to the
    data plane's user; 0: no samples. A slow sample is followed by a longer pause."""


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
    def lmcache_requested(self) -> bool:
        """Whether a setting requests the gateway. If so, a start without it fails; otherwise it is optional."""
        table = self.table
        configured = self.common.lmcache_port is not None or table.lmcache_pool_bytes or table.lmcache_shm_name
        return bool(self.lmcache_port and configured)

    @property
    def lmcache_allow_clear(self) -> bool:
        allowed = self.table.lmcache_allow_clear
        return ip_address(self.table.lmcache_host).is_loopback if allowed is None else allowed

    @property
    def lmcache_url(self) -> str:
        return f"tcp://{host_and_port(self.table.lmcache_host, self.lmcache_port)}"

    @property
    def lmcache_pool_bytes(self) -> int:
        """Size of the memory that LMCache clients map, if `/dev/shm` has that much."""
        return (self.table.lmcache_pool_bytes or self.pool_bytes) // 4096 * 4096

    @property
    def lmcache_shm_name(self) -> str:
        """Name of that memory, after the prefix that clients expect."""
        # Containers may share /dev/shm while each has its state directory at the same path.
        location = f"{socket.gethostname()}:{os.path.realpath(self.common.state_dir)}"
        return self.table.lmcache_shm_name or f"larder-{sha256(location.encode()).hexdigest()[:12]}"

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
    if settings.pool_bytes > (has := total_bytes(huge=settings.table.huge_pages)):
        raise SettingsError(
            f"pool_bytes: expected at most the memory of this machine or container, {format_size(has)}, got "
            f"{format_size(settings.pool_bytes)}; {format_size(available_bytes())} are free now"
        )
    return settings


def check_machine(settings: DataPlaneSettings, adopted_bytes: int = 0, *, supervised: bool = False) -> None:
    """Check that this machine has the required huge pages and may lock enough memory, and that a data plane that a
    supervisor starts joins no fleet. `adopted_bytes` of the pool are already in memory taken over from a predecessor.

    Raises SettingsError: a start that asks for huge or locked pages must not silently run without them.
    """
    if supervised and settings.table.join_token_file:
        raise SettingsError(
            "dataplane.join_token_file: the data plane that `larder up` starts belongs to it; "
            "start one that joins with `larder dataplane`"
        )
    needed = max(0, settings.pool_bytes - adopted_bytes)
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
        ("lmcache_port", settings.lmcache_port, 0, 65_535),
    ):
        if not low <= value <= high:
            raise SettingsError(f"{name}: expected {low} to {high}, got {value}")
    check_ranges(table, "dataplane.")
    if table.node and (len(table.node) > 64 or not is_printable(table.node)):
        raise SettingsError("dataplane.node: expected at most 64 printable characters")
    _check_lmcache(table)
    if table.segment_bytes % 4096:
        raise SettingsError("dataplane.segment_bytes: expected a multiple of 4096")
    if 0 < table.gpu_pool_bytes < MIN_GPU_POOL_BYTES:
        raise SettingsError(
            f"dataplane.gpu_pool_bytes: expected 0, or {MIN_GPU_POOL_BYTES} or more, got {table.gpu_pool_bytes}"
        )
    if table.huge_pages:
        for name, value in (("pool_bytes", settings.pool_bytes), ("dataplane.segment_bytes", table.segment_bytes)):
            if value % HUGE_BYTES or not value:
                raise SettingsError(
                    f"{name}: expected a multiple of 2 MiB, because of dataplane.huge_pages; got {value}"
                )
    if table.mlock and not table.prefault:
        raise SettingsError("dataplane.mlock: needs dataplane.prefault, which allocates and locks the pages")
    if table.disk_tier_directories and table.disk_tier_bytes < MIN_DISK_TIER_BYTES:
        raise SettingsError(
            f"dataplane.disk_tier_bytes: expected {MIN_DISK_TIER_BYTES} or more, because of "
            f"dataplane.disk_tier_directories; got {table.disk_tier_bytes}"
        )
    for entry in table.tier_secrets:
        if not allowed_secrets.is_entry(entry):
            raise SettingsError(
                "dataplane.tier_secrets: expected names, env:NAME or file:/path, with or without * at the end"
            )
    if fault := label_rules.fault(table.labels):
        raise SettingsError(f"dataplane.labels: {fault}")
    _check_endpoints(settings)
    _check_kv_events(settings)


def _check_lmcache(table: DataPlaneTable) -> None:
    if 0 < table.lmcache_pool_bytes < PAGE_BYTES:
        raise SettingsError(
            f"dataplane.lmcache_pool_bytes: expected 0, or {PAGE_BYTES} or more, got {table.lmcache_pool_bytes}"
        )
    try:
        ip_address(table.lmcache_host)
    except ValueError:
        raise SettingsError(f"dataplane.lmcache_host: expected an IP address, got {table.lmcache_host!r}") from None
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
        if fault := url_fault(url, any_port=True):
            raise SettingsError(f"{name}: {fault}")
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


def rank_url(url: str, rank: int) -> str:
    """Return the endpoint of a data-parallel rank, as vLLM derives it: the port plus the rank."""
    if not rank or not url:
        return url
    if url.startswith("ipc://"):
        return f"{url}_dp{rank}"
    port = port_of(url)
    return f"tcp://{host_of(url)}:{port + rank if port else 0}"


def _check_kv_events(settings: DataPlaneSettings) -> None:
    common, table = settings.common, settings.table
    named = {"kv_events_url": common.kv_events_url, "dataplane.kv_events_replay_url": table.kv_events_replay_url}
    if not common.kv_events_url:
        if table.kv_events_replay_url or table.kv_events_token_ids:
            raise SettingsError("kv_events_url: expected an endpoint, because other settings of KV events are set")
        return
    names_by_endpoint = {common.control_url: "control_url", common.events_url: "events_url"}
    for name, url in named.items():
        if not url:
            continue
        if fault := url_fault(url, any_port=True):
            raise SettingsError(f"{name}: {fault}")
        last = rank_url(url, table.kv_events_ranks - 1)
        if port_of(last) > 65_535:
            raise SettingsError(f"{name}: rank {table.kv_events_ranks - 1} would have port {port_of(last)}")
        for rank in range(table.kv_events_ranks):
            endpoint = rank_url(url, rank)
            path = endpoint.removeprefix("ipc://")
            if path != endpoint and len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
                raise SettingsError(f"{name}: expected a path of at most {MAX_SOCKET_PATH_BYTES} bytes: {path}")
            if endpoint in names_by_endpoint or path == common.engine_socket:
                raise SettingsError(
                    f"{name}: {endpoint} is the endpoint of {names_by_endpoint.get(endpoint, 'engine_socket')} already"
                )
            if not endpoint.endswith(":0"):
                names_by_endpoint[endpoint] = name
    if len(table.kv_events_topics) > MAX_TOPICS or not all(
        is_printable(topic) and len(topic) <= MAX_TOPIC_CHARACTERS for topic in table.kv_events_topics
    ):
        raise SettingsError(
            f"dataplane.kv_events_topics: expected at most {MAX_TOPICS} topics of at most {MAX_TOPIC_CHARACTERS} "
            "printable characters"
        )
    if not _MEDIUM.fullmatch(table.kv_events_medium):
        raise SettingsError(
            "dataplane.kv_events_medium: expected 1 to 64 letters, digits, dots, dashes and underscores, "
            f"got {table.kv_events_medium!r}"
        )
    remote_urls = [url for url in named.values() if url and not is_loopback(url)]
    if table.kv_events_token_ids and remote_urls and not table.kv_events_remote_token_ids:
        raise SettingsError(
            f"dataplane.kv_events_token_ids: {remote_urls[0]!r} can be reached from other machines, has no "
            "authentication, and token ids are prompts. Use ipc:// or tcp://127.0.0.1, or allow it with "
            "dataplane.kv_events_remote_token_ids (LARDER_DATAPLANE__KV_EVENTS_REMOTE_TOKEN_IDS=true)"
        )
