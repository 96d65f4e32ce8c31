"""Attach to a data plane: check the arguments, connect, and choose the class of the client."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dataplane.client.attachment import AttachedMemory
from dataplane.client.client import Client
from dataplane.client.events import ClientEvent
from dataplane.client.integrity import VERIFY, Verify
from dataplane.client.link import EngineLink
from dataplane.protocol import barrier
from dataplane.protocol import engine as wire
from dataplane.protocol.codec import encode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.spaces import Space, check_space

MAX_SPIN_S = 0.01

_log = logging.getLogger("larder.client")


def attach(
    path: str | os.PathLike[str],
    spaces: Sequence[Space | wire.SpaceRequest],
    *,
    group: str = "",
    engine: str = "",
    timeout_s: float = 1.0,
    spin_s: float = 0.0,
    on_event: Callable[[ClientEvent], None] | None = None,
    checksums: bool = True,
    verify: Verify = "off",
    traces: bool | None = None,
    keep_trying: bool = False,
) -> Client:
    """Return a client of the data plane that listens on the engine socket `path`.

    `spaces` are the KV spaces of this process. The process writes to each of them, except those wrapped in
    `SpaceRequest(space, writes=False)`. `group` names the engine group (default: this process alone). `timeout_s`
    bounds every wait. For the first `spin_s` seconds of a wait (0.0003 is enough) the client polls for the answer
    instead of sleeping; this speeds up reserve and commit if the thread has a core to itself, and slows down all
    processes otherwise. `on_event` receives an event for each lost or regained connection and each refusal (default:
    the log "larder.client").

    With `checksums`, a commit carries the checksum of every block that it publishes. `verify` selects the blocks whose
    checksums an acquire verifies before it returns the lease: none ("off"), one of 64 at random ("sample"), or all
    ("always"). Blocks that survived a crash of the data plane are always verified once. A corrupt block counts as a
    miss.

    With `traces`, calls are OpenTelemetry spans, and so is the data plane's work for them; by default, if this process
    has set a tracer provider by now. It needs the package opentelemetry-api.

    Raises ValueError for wrong arguments, AttachRefused when the data plane refuses the engine, and
    `barrier.UnsupportedMachine` on machines other than x86-64. A missing data plane raises nothing: every look-up
    misses until a data plane starts. With `keep_trying`, neither does a refusal: `on_event` receives it, and the client
    attaches as soon as it may, for example when a drain of the node has ended.
    """
    barrier.check_machine()
    if not spaces:
        raise ValueError("expected at least one space")
    if timeout_s <= 0:
        raise ValueError(f"timeout_s must be positive, got {timeout_s}")
    if not 0 <= spin_s <= MAX_SPIN_S:
        raise ValueError(f"expected spin_s from 0 to {MAX_SPIN_S}, got {spin_s}")
    if verify not in VERIFY:
        raise ValueError(f"verify must be one of {', '.join(VERIFY)}, got {verify!r}")
    requests = [space if isinstance(space, wire.SpaceRequest) else wire.SpaceRequest(space) for space in spaces]
    for at, request in enumerate(requests):
        try:
            check_space(request.space, f"spaces[{at}]")
        except ProtocolError as error:
            raise ValueError(f"{error.field}: {error.message}") from None
    group = group or f"pid-{os.getpid()}"
    size = len(encode(wire.Attach(0, wire.VERSION, group, requests, engine)))
    if size > wire.MAX_DATAGRAM_BYTES - 16:
        raise ValueError(f"expected an attach of at most {wire.MAX_DATAGRAM_BYTES} bytes, got {size}: fewer spaces")
    client_type, traceparent = _tracing(traces)
    memory = AttachedMemory()
    link = EngineLink(
        memory, str(Path(path)), group, engine, requests, timeout_s, on_event or _log_event, spin_s, traceparent
    )
    client = client_type(link, memory, checksums=checksums, verify=verify)
    link.attach(keep_trying=keep_trying)
    client.map_tiers(timeout_s)
    return client


def _tracing(traces: bool | None) -> tuple[type[Client], Callable[[], str] | None]:
    """Return the class of a new client, and what returns its current span. Raise ValueError if it should trace and
    cannot."""
    api = sys.modules.get("opentelemetry.trace")
    if traces is None:
        traces = api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)
    if not traces:
        return Client, None
    try:
        from dataplane.client.traced import TracedClient, traceparent
    except ImportError as error:
        raise ValueError(f"traces: expected the package opentelemetry-api to be installed: {error}") from None
    return TracedClient, traceparent


def _log_event(event: ClientEvent) -> None:
    level = logging.INFO if event.name == "attached" else logging.WARNING
    _log.log(level, "larder.%s %s", event.name, event.detail)
