"""Build the gateways of this node from its settings. A gateway that is left out gets a log line with the reason."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from dataplane.base.settings import SettingsError
from dataplane.copies.devices import Devices
from dataplane.copies.gpu_copies import GpuCopyService
from dataplane.core.inprocess import InProcess
from dataplane.core.node import Node
from dataplane.gateways.lmcache.handlers.chains import OnHashed
from dataplane.gateways.lmcache.server import GatewayOptions, LMCacheServer
from dataplane.gateways.lmcache.workers.instances import Timeouts
from dataplane.gateways.lmcache.zmtp.sockets import InheritedSocket, SocketStore, listen, release, url_of
from dataplane.io.loop import Loop
from dataplane.memory.memory import NodeMemory
from dataplane.observe.trace import RequestSpans
from dataplane.protocol.join import is_loopback
from dataplane.settings import DataPlaneSettings

REGISTRATIONS = "lmcache"
"""Folder in the state directory that stores the registrations."""

log = structlog.stdlib.get_logger()


def check_listener(settings: DataPlaneSettings, inherited: Sequence[int]) -> None:
    """Check that the gateway can listen where it was explicitly requested to. `inherited` are listeners of the previous
    data plane. Raises SettingsError, and OSError for an address that may be free later."""
    if not settings.lmcache_port or settings.common.lmcache_port is None:
        return
    ports = set()
    for fd in inherited:
        with socket.socket(fileno=os.dup(fd)) as listener:
            if url_of(listener) == settings.lmcache_url:
                return
            ports.add(listener.getsockname()[1])
    try:
        listen(settings.lmcache_url).close()
    except (OSError, ValueError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        if in_use and settings.lmcache_port in ports:
            return  # by the previous data plane, whose listener is closed first
        raise _cannot_listen(settings.lmcache_url, error) from None


def _cannot_listen(url: str, error: OSError | ValueError) -> OSError | SettingsError:
    """Return the error for an address that cannot be listened on."""
    reason = getattr(error, "strerror", None) or str(error)
    kind = OSError if isinstance(error, OSError) else SettingsError
    return kind(f"lmcache_port: {url} cannot be listened on: {reason}; name another port, or 0 for no LMCache gateway")


def lmcache_gateway(
    settings: DataPlaneSettings,
    loop: Loop,
    node: Node,
    memory: NodeMemory,
    clock: Callable[[], float],
    holder: SocketStore,
    inherited: Sequence[InheritedSocket],
    devices: Devices,
    gpu_copies: GpuCopyService,
    request_spans: RequestSpans,
    on_hashed: OnHashed | None,
) -> LMCacheServer | None:
    """Return the LMCache gateway, or None if it is disabled, or if it cannot listen and was not requested explicitly.

    `holder` is notified of the gateway's sockets; `inherited` are the sockets of the previous data plane, which the
    holders kept. Raise OSError if the gateway was requested explicitly and cannot listen.
    """
    if not settings.lmcache_port or memory.named is None:
        release(inherited, holder)
        return None
    url = settings.lmcache_url
    options = GatewayOptions(
        url,
        Path(settings.common.state_dir) / REGISTRATIONS,
        settings.lmcache_allow_clear,
        Timeouts(settings.table.lmcache_idle_timeout_s, settings.table.lmcache_first_ping_timeout_s),
    )
    try:
        server = LMCacheServer(
            options,
            loop,
            InProcess(node),
            memory.named,
            memory.expect_worker,
            clock,
            devices,
            holder,
            inherited=inherited,
            gpu_copies=gpu_copies,
            request_spans=request_spans,
            on_hashed=on_hashed,
        )
    except OSError as error:
        if settings.common.lmcache_port is not None:
            raise _cannot_listen(url, error) from None
        log.warning("lmcache.off", url=url, reason=error.strerror or str(error), effect="no LMCache client is served")
        memory.drop_named()
        return None
    if not is_loopback(url):
        log.warning(
            "lmcache.open_to_others",
            url=url,
            effect="any client that can reach this address may read, write and clear what LMCache clients cache",
        )
    log.info("lmcache.serving", url=server.url, memory=memory.named.name, bytes=memory.named.nbytes)
    return server
