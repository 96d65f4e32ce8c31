"""`python -m dataplane.replay.load`: an artificial load of three tenants on a running data plane, until it is stopped.

There is one engine process per tenant (see `sessions`). With `--json` it prints one object per line: first the prefix
that the tenants share, so that it can be pinned, then the counts of each second.
"""

import json
import signal
import sys
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

import click

from dataplane.base.units import format_size, parse_size
from dataplane.client import attach
from dataplane.protocol.keys import chain
from dataplane.protocol.spaces import Space
from dataplane.replay.engine import ReplayEngine
from dataplane.replay.processes import Engines, engine_processes
from dataplane.replay.sessions import SUPPORT, WORKLOADS, system_prompt
from dataplane.replay.tally import ReplayTally, total

MODEL = "demo/llama"
REPORT_S = 1.0
TIMEOUT_S = 1.0
TIER_WAIT_S = 0.5
_PAUSE_S = 0.2


def drive(workload: str, socket_path: str, block_bytes: int, rate: float, seed: int, pipe: Connection) -> None:
    """Run one engine process: requests of one tenant at random times, `rate` per second on average.

    Each second, the counts since the last report are sent through `pipe`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    random = Random(f"{seed} {workload}")
    client = attach(
        socket_path,
        [Space(model=MODEL, dtype="bfloat16", block_bytes=block_bytes)],
        group=f"demo-{workload}",
        engine=f"demo {workload}",
        timeout_s=TIMEOUT_S,
    )
    try:
        engine = ReplayEngine(client, block_bytes, tier_wait_s=TIER_WAIT_S)
        due = reported = time.monotonic()
        for keys in WORKLOADS[workload](random):
            due += random.expovariate(rate)
            now = time.monotonic()
            time.sleep(max(0.0, due - now))
            due = max(due, now - _PAUSE_S)  # requests that a busy machine missed are not made up for
            if not client.connected:
                time.sleep(_PAUSE_S)
            engine.serve(keys, workload)
            if time.monotonic() - reported >= REPORT_S:
                pipe.send(engine.tally)
                engine.tally = ReplayTally()
                reported = time.monotonic()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the parent process has ended
    finally:
        client.close()


@click.command(name="load", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--attach", "socket_path", required=True, type=click.Path(path_type=Path), help="The engine socket.")
@click.option("--block-bytes", default="64KiB", show_default=True, help="Bytes of a block, a multiple of 32.")
@click.option(
    "--rate", default=20.0, show_default=True, type=click.FloatRange(0.01, 10_000), help="Requests per second."
)
@click.option("--seconds", type=click.FloatRange(min=0.1), help="Stop after this time.  [default: never]")
@click.option("--seed", default=0, show_default=True, help="Seed of the random requests.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def main(socket_path: Path, block_bytes: str, rate: float, seconds: float | None, seed: int, as_json: bool) -> None:
    """A made-up load of three tenants: growing chats, a shared system prompt, a scanner of unique prompts."""
    try:
        size = parse_size(block_bytes)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--block-bytes") from None
    if size % 32 or not size:
        raise click.BadParameter(f"expected a multiple of 32 bytes, got {size}", param_hint="--block-bytes")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    if as_json:
        _print_line({"model": MODEL, "tenant": SUPPORT, "keys": [key.hex() for key in chain(system_prompt(), SUPPORT)]})
    end = time.monotonic() + seconds if seconds else float("inf")
    try:
        given = str(socket_path), size, rate / len(WORKLOADS), seed
        with engine_processes(drive, {workload: (workload, *given) for workload in WORKLOADS}) as engines:
            _report(engines, end, as_json)
    except KeyboardInterrupt:
        sys.exit(0)


def _report(engines: Engines, end: float, as_json: bool) -> None:
    """Add up the engines' counts and print them every second, until `end`."""
    tenants = {engine.name: ReplayTally() for engine in engines.values()}
    latest: list[ReplayTally] = []
    reported_at = time.monotonic()
    while time.monotonic() < end:
        for pipe in wait(list(engines), timeout=REPORT_S / 2):
            assert isinstance(pipe, Connection)
            tenant = engines[pipe].name
            try:
                tally: ReplayTally = pipe.recv()
            except EOFError:
                raise click.ClickException(f"the engine of {tenant} ended; its error is above") from None
            latest.append(tally)
            tenants[tenant] = total([tenants[tenant], tally])
            tenants[tenant].lookup_ns.clear()
        if latest and time.monotonic() - reported_at >= REPORT_S:
            summary = _summary(tenants, total(latest))
            if as_json:
                _print_line(summary)
            else:
                ratios = ", ".join(f"{name} {share['hit_ratio']:.0%}" for name, share in summary["tenants"].items())
                written = format_size(summary["stored_bytes"])
                click.echo(
                    f"{summary['requests']:,} requests, hits: {ratios}; {written} stored, "
                    f"{summary['verify_errors']} wrong blocks"
                )
            latest = []
            reported_at = time.monotonic()


def _summary(tenants: dict[str, ReplayTally], latest: ReplayTally) -> dict[str, Any]:
    everything = total(list(tenants.values()))
    return {
        "requests": everything.requests,
        "blocks_requested": everything.blocks_requested,
        "blocks_hit": everything.blocks_hit,
        "blocks_loaded": everything.blocks_loaded,
        "blocks_stored": everything.blocks_stored,
        "blocks_refused": everything.blocks_refused,
        "verify_errors": everything.verify_errors,
        "stored_bytes": everything.stored_bytes,
        "read_bytes": everything.read_bytes,
        "lookup_us": {"p50": round(latest.lookup_us(50), 1), "p99": round(latest.lookup_us(99), 1)},
        "tenants": {
            name: {"requests": tally.requests, "hit_ratio": round(tally.blocks_hit / max(1, tally.blocks_requested), 4)}
            for name, tally in tenants.items()
        },
    }


def _print_line(message: dict[str, Any]) -> None:
    click.echo(json.dumps(message))
    sys.stdout.flush()


if __name__ == "__main__":
    main(prog_name="python -m dataplane.replay.load")
