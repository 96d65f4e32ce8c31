"""`make bench-peers`: Larder's gateway and LMCache's own server, both alive, taking turns with the same client.

Exit codes: 0 when everything ran, whether targets were met or not; 1 when something could not be measured.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median

import click
from rich.console import Console

from benchmarks.harness import machine
from benchmarks.harness.memory import Memcpy, MiB
from benchmarks.harness.report import RESULTS, table, write
from benchmarks.harness.result import Report, Result
from benchmarks.harness.timing import once_ns
from benchmarks.peers import abandoned, burst, lookups, servers, transfers
from benchmarks.peers.effort import FULL, QUICK, Effort
from benchmarks.peers.peer import Peer

BENCHMARKS: dict[str, Callable[[Peer, Peer, Effort], list[Result]]] = {
    "lookups": lookups.run,
    "transfers": transfers.run,
    "burst": burst.run,
    "abandoned": abandoned.run,
}
_COPY_BYTES = 32 * MiB


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)), metavar="[NAME]...")
@click.option("--quick", is_flag=True, help="A few samples: to see that everything runs, not for figures.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=RESULTS, help="Folder of the result file."
)
def main(names: tuple[str, ...], quick: bool, output: Path) -> None:
    """Hold Larder's gateway against LMCache's own server."""
    effort = QUICK if quick else FULL
    console = Console()
    results: list[Result] = []
    for name in names or tuple(BENCHMARKS):
        started = time.monotonic()
        console.print(f"{name} … ", end="")
        try:
            results += _measured(BENCHMARKS[name], effort)
        except RuntimeError as error:
            raise click.ClickException(f"{name}: {error}") from None
        console.print(f"{time.monotonic() - started:.1f} s")
    with closing(Memcpy(_COPY_BYTES, effort.pool_bytes)) as memcpy:
        speed = median(_COPY_BYTES / once_ns(memcpy.into_arena) for _ in range(11))
    report = Report(machine.describe(), speed, results)
    console.print(table(report))
    console.print("baseline: LMCache's own server (of memcpy: GB/s of memcpy)")
    console.print(f"written to {write(report, output, 'peers')}", soft_wrap=True)


def _measured(run: Callable[[Peer, Peer, Effort], list[Result]], effort: Effort) -> list[Result]:
    """With fresh servers: what one benchmark left is nothing to the next."""
    with ExitStack() as stack:
        larder_server = stack.enter_context(servers.larder(effort.pool_bytes))
        lmcache_server = stack.enter_context(servers.lmcache(effort.pool_bytes))
        larder, lmcache = (stack.enter_context(closing(Peer(server))) for server in (larder_server, lmcache_server))
        return run(larder, lmcache, effort)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.peers")
