"""The gateways of this node: made as the settings say, or left out with one line in the log that says why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from dataplane.core.inprocess import InProcess
from dataplane.core.node import Node
from dataplane.protocol.join import is_loopback
from dataplane.protocol.layout import H_MEMORY
from dataplane.protocol.settings import SettingsError
from dataplane.settings import Settings
from dataplane.tiers.memory import NodeMemory
from dataplane.tiers.named import NamedFile
from dataplane.transport.devices import Devices
from dataplane.transport.lmcache.instances import Patience
from dataplane.transport.lmcache.server import LMCacheServer
from dataplane.transport.lmcache.sockets import Inherited, Keeper, let_go
from dataplane.transport.loop import Loop
from dataplane.transport.replicas import ReplicaCopies

REGISTRATIONS = "lmcache"
"""Folder of the state directory that keeps who registered."""

log = structlog.stdlib.get_logger()


def lmcache(
    settings: Settings,
    loop: Loop,
    node: Node,
    memory: NodeMemory,
    clock: Callable[[], float],
    keeper: Keeper,
    inherited: Sequence[Inherited],
    devices: Devices,
    replicas: ReplicaCopies,
) -> LMCacheServer | None:
    """The LMCache gateway; None where there is to be none, or where nobody asked for it and it cannot be. `keeper`
    hears of its sockets; `inherited` are those of the data plane before, which its holders have.

    Raises SettingsError when somebody asked for it.
    """
    if not settings.lmcache_port or memory.named is None:
        let_go(inherited, keeper)
        return None
    url = settings.lmcache_url
    try:
        server = LMCacheServer(
            loop,
            url,
            InProcess(node),
            memory.named,
            int(memory.index.cells[H_MEMORY]),
            Path(settings.common.state_dir) / REGISTRATIONS,
            clock,
            allow_clear=settings.lmcache_allow_clear,
            patience=Patience(settings.table.lmcache_silent_s, settings.table.lmcache_never_pinged_s),
            keeper=keeper,
            inherited=inherited,
            devices=devices,
            replicas=replicas,
        )
    except OSError as error:
        reason = error.strerror or str(error)
        if settings.common.lmcache_port is not None:
            raise SettingsError(
                f"lmcache_port: {url} cannot be listened at: {reason}; "
                "name another port, or 0 for no LMCache gateway"
            ) from None
        log.warning("lmcache.off", url=url, reason=reason, effect="no LMCache client is served")
        memory.drop_named()
        return None
    if not is_loopback(url):
        log.warning(
            "lmcache.open_to_others",
            url=url,
            effect="whoever reaches this address may read, write and clear what LMCache clients cache",
        )
    _keep_pinned_pages(memory.named, devices)
    log.info("lmcache.serving", url=server.url, memory=memory.named.name, bytes=memory.named.nbytes)
    return server


def _keep_pinned_pages(named: NamedFile, devices: Devices) -> None:
    """Pages that a device may write to by address are not taken from the segment."""
    allowed = named.may_give_back
    named.may_give_back = lambda: not devices.named_is_pinned and allowed()
