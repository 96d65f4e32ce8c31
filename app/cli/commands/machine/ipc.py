"""`larder ipc …`: queues and stores in shared memory of this user. No Larder has to run."""

import click
import msgspec

from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, table
from app.cli.support.resources.options import Output, output_option, repeat_options, watch_option


def _count(count: int | None) -> str:
    """Return a count, or a dash for one that was not read."""
    return "-" if count is None else f"{count:,}"


_QUEUES = (
    Column("queue", lambda queue: queue.name or queue.identity[:8]),
    Column("writer", lambda queue: str(queue.writer or "gone"), right=True),
    Column("readers", lambda queue: f"{sum(reader.alive for reader in queue.readers):,}", right=True),
    Column("remote", lambda queue: f"{queue.remote_readers:,}", right=True, drop=2),
    Column("messages", lambda queue: f"{queue.messages:,}", right=True),
    Column("sent", lambda queue: show.size(queue.bytes), right=True),
    Column("lag", lambda queue: show.size(_lag(queue)), right=True),
    Column("ring", lambda queue: show.size(queue.capacity_bytes), right=True, drop=2),
    Column("waits", lambda queue: f"{queue.waits:,}", right=True, drop=1),
    Column("wakes", lambda queue: f"{queue.wakes:,}", right=True, drop=3),
    Column("dropped", lambda queue: f"{queue.dropped:,}", right=True, drop=2),
    Column("dead readers", lambda queue: f"{queue.dead_readers:,}", right=True, drop=1),
)
_STORES = (
    Column("store", lambda store: store.name or store.identity[:8]),
    Column("processes", lambda store: f"{len(store.pids):,}", right=True),
    Column("objects", lambda store: _count(store.objects), right=True),
    Column("used", lambda store: show.size(store.used_bytes), right=True),
    Column("budget", lambda store: show.size(store.data_bytes), right=True),
    Column("hits", lambda store: f"{store.hits:,}", right=True),
    Column("misses", lambda store: f"{store.misses:,}", right=True),
    Column("puts", lambda store: f"{store.puts:,}", right=True, drop=1),
    Column("evicted", lambda store: f"{store.evictions:,}", right=True, drop=1),
    Column("being read", lambda store: _count(store.leased_objects), right=True, drop=2),
    Column("dead processes", lambda store: f"{store.dead_processes:,}", right=True, drop=3),
)


@click.group()
def ipc() -> None:
    """Show the queues and stores in shared memory of this user."""


@ipc.command()
@output_option
@watch_option
@repeat_options
def top(output: Output) -> None:
    """List queues with their writer and readers, stores with their objects, and the counters of both."""
    from dataplane.ipc.queue.stats import live_queues
    from dataplane.ipc.store import live_stores

    queues = sorted(live_queues(), key=lambda queue: (queue.name, queue.identity))
    stores = sorted(live_stores(), key=lambda store: (store.name, store.identity))
    report = {"queues": msgspec.to_builtins(queues), "stores": msgspec.to_builtins(stores)}
    if output.data(report, [queue.identity for queue in queues] + [store.identity for store in stores]):
        return
    table("Queues", _QUEUES, queues, wide=output.wide)
    if stores:
        table("Stores", _STORES, stores, wide=output.wide)


def _lag(queue: object) -> int:
    return max((reader.lag_bytes for reader in getattr(queue, "readers", ()) if reader.alive), default=0)
