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
    Column("queue", lambda each: each.name or each.identity[:8]),
    Column("writer", lambda each: str(each.writer or "gone"), right=True),
    Column("readers", lambda each: f"{sum(one.alive for one in each.readers):,}", right=True),
    Column("remote", lambda each: f"{each.remote_readers:,}", right=True, drop=2),
    Column("messages", lambda each: f"{each.messages:,}", right=True),
    Column("sent", lambda each: show.size(each.bytes), right=True),
    Column("lag", lambda each: show.size(_lag(each)), right=True),
    Column("ring", lambda each: show.size(each.capacity_bytes), right=True, drop=2),
    Column("waits", lambda each: f"{each.waits:,}", right=True, drop=1),
    Column("wakes", lambda each: f"{each.wakes:,}", right=True, drop=3),
    Column("dropped", lambda each: f"{each.dropped:,}", right=True, drop=2),
    Column("dead readers", lambda each: f"{each.dead_readers:,}", right=True, drop=1),
)
_STORES = (
    Column("store", lambda each: each.name or each.identity[:8]),
    Column("processes", lambda each: f"{len(each.pids):,}", right=True),
    Column("objects", lambda each: _count(each.objects), right=True),
    Column("used", lambda each: show.size(each.used_bytes), right=True),
    Column("budget", lambda each: show.size(each.data_bytes), right=True),
    Column("hits", lambda each: f"{each.hits:,}", right=True),
    Column("misses", lambda each: f"{each.misses:,}", right=True),
    Column("puts", lambda each: f"{each.puts:,}", right=True, drop=1),
    Column("evicted", lambda each: f"{each.evictions:,}", right=True, drop=1),
    Column("being read", lambda each: _count(each.leased_objects), right=True, drop=2),
    Column("dead processes", lambda each: f"{each.dead_processes:,}", right=True, drop=3),
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

    queues = sorted(live_queues(), key=lambda each: (each.name, each.identity))
    stores = sorted(live_stores(), key=lambda each: (each.name, each.identity))
    report = {"queues": msgspec.to_builtins(queues), "stores": msgspec.to_builtins(stores)}
    if output.data(report, [each.identity for each in queues] + [each.identity for each in stores]):
        return
    table("Queues", _QUEUES, queues, wide=output.wide)
    if stores:
        table("Stores", _STORES, stores, wide=output.wide)


def _lag(queue: object) -> int:
    return max((one.lag_bytes for one in getattr(queue, "readers", ()) if one.alive), default=0)
