"""Command line of the replay.

Exit codes: 0 if every byte read was right; 1 if the run failed or a byte was wrong; 2 for wrong usage or an invalid
trace; 128 plus the signal number if a signal stopped it.
"""

import json
import math
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dataplane.base.units import format_size, parse_size
from dataplane.protocol.control.records import ALGORITHMS, POLICY_IN_FORCE, Algorithm, PolicySpec
from dataplane.protocol.engine import MAX_WAIT_S
from dataplane.replay import plane as planes
from dataplane.replay.report import as_object, as_table
from dataplane.replay.run import EngineFailed, ReplayPlan, ReplayResult, replay
from dataplane.replay.tenants import Shares, parse_shares
from dataplane.replay.trace import TraceError, TraceRequest, read_trace

DEFAULT_BLOCK_BYTES = 4096
DEFAULT_POOL_BYTES = 256 << 20
MAX_BLOCK_BYTES = 256 << 20
"""Upper limit because every engine holds three blocks: the pattern, a buffer to read into, and room to compare."""
MAX_ENGINES = 64
PAGE = 4096
"""Bytes of which slots of the pool are multiples."""
SLAB_BYTES = 2 << 20
"""Slots of at most an eighth of it are cut from slabs of this size, and none crosses the end of a slab."""
MIN_TIER_BYTES = 1 << 20
TIER_WAIT_S = 5.0


def _size(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        size = parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if size == 0:
        raise click.BadParameter("expected at least 1 byte")
    return size


def _block_size(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    size = _size(context, parameter, text)
    if size is None:
        return None
    if size % 32 or size > MAX_BLOCK_BYTES:
        raise click.BadParameter(f"expected a multiple of 32 bytes, at most {format_size(MAX_BLOCK_BYTES)}, got {size}")
    return size


def _shares(context: click.Context, parameter: click.Parameter, text: str | None) -> Shares | None:
    if text is None:
        return None
    try:
        return parse_shares(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _speed(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise click.BadParameter(f"expected a number above 0, got {value}")
    return value


@click.command(name="replay", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--engines",
    type=click.IntRange(1, MAX_ENGINES),
    default=1,
    show_default=True,
    help="Engine processes; request i goes to engine i mod N.",
)
@click.option("--pool-blocks", type=click.IntRange(min=1), metavar="N", help="Room for exactly N blocks.")
@click.option("--pool", metavar="SIZE", callback=_size, help="Size of the pool, e.g. 1GiB.  [default: 256MiB]")
@click.option(
    "--block-bytes",
    metavar="SIZE",
    callback=_block_size,
    help="Bytes of a block.  [default: the largest of the trace; 4096 if it has none, which is "
    "enough to see which blocks stay]",
)
@click.option("--policy", type=click.Choice(ALGORITHMS), help="Eviction policy.  [default: lru]")
@click.option(
    "--admission",
    is_flag=True,
    help="Under pressure, store a block only if its key was requested before. Needs --speed.",
)
@click.option(
    "--admission-idle",
    "idle_s",
    type=click.FloatRange(min=0, min_open=True),
    default=240.0,
    show_default=True,
    metavar="SECONDS",
    help="Pressure: victims were idle for less than this on average, in the trace's time.",
)
@click.option(
    "--tenants",
    metavar="A=0.5,B=0.5",
    callback=_shares,
    help="Assign requests to tenants by weight; the same request always goes to the same tenant.  "
    "[default: as the trace says]",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N requests.")
@click.option(
    "--speed",
    type=float,
    metavar="X",
    callback=_speed,
    help="Keep the trace's times, X times faster.  [default: as fast as possible]",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object on the last line of standard output.")
@click.option(
    "--attach",
    metavar="SOCKET",
    type=click.Path(path_type=Path),
    help="Engine socket of a running data plane; without it one is started for the replay.",
)
@click.option(
    "--disk-tier",
    metavar="SIZE",
    callback=_size,
    help="Put a disk tier of this size behind the pool, in a temporary folder (TMPDIR).",
)
@click.option(
    "--tier-wait",
    "tier_wait_s",
    type=click.FloatRange(min=0, max=MAX_WAIT_S),
    metavar="SECONDS",
    help="Longest wait of a request for blocks in tiers; 0: do not load from tiers.  "
    f"[default: {TIER_WAIT_S:g} with --disk-tier, else 0]",
)
@click.option("--verify/--no-verify", default=True, show_default=True, help="Check every byte that is read.")
def main(
    trace: Path,
    engines: int,
    pool_blocks: int | None,
    pool: int | None,
    block_bytes: int | None,
    policy: Algorithm | None,
    admission: bool,
    idle_s: float,
    tenants: Shares | None,
    limit: int | None,
    speed: float | None,
    as_json: bool,
    attach: Path | None,
    disk_tier: int | None,
    tier_wait_s: float | None,
    verify: bool,
) -> None:
    """Drive real engine processes with TRACE (Mooncake format: one JSON object a line with timestamp in ms,
    input_length, output_length and hash_ids) and check every byte that comes back."""
    spec = _policy(policy, admission, idle_s, speed, attach)
    try:
        requests = read_trace(trace, limit)
    except TraceError as error:
        raise click.UsageError(str(error)) from None
    size = _recorded_size(requests) if block_bytes is None else block_bytes
    pool_bytes = _pool_bytes(pool_blocks, pool, size, attach)
    if disk_tier is not None and attach is not None:
        raise click.UsageError("--disk-tier: expected no --attach, which uses the tiers of a running data plane.")
    if disk_tier is not None and disk_tier < MIN_TIER_BYTES:
        raise click.UsageError(f"--disk-tier: expected at least {format_size(MIN_TIER_BYTES)}.")
    if tier_wait_s is None:
        tier_wait_s = TIER_WAIT_S if disk_tier is not None else 0.0
    plan = ReplayPlan(requests, engines, size, tenants, speed, verify, tier_wait_s)
    # SIGTERM and SIGHUP stop the data plane and the engines, as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        with (
            _plane(attach, pool_bytes, pool_blocks or 0, spec, disk_tier) as plane,
            _progress(len(requests), quiet=as_json) as progress,
        ):
            outcome = _run(plan, plane, progress)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (planes.PlaneError, EngineFailed) as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        click.echo(json.dumps(as_object(outcome)))
    else:
        Console().print(as_table(outcome))
    sys.exit(1 if outcome.tally.verify_errors else 0)


def _recorded_size(requests: list[TraceRequest]) -> int:
    """Return the block size of the trace, in multiples of 32 bytes. Print a note if it differs from the trace."""
    sizes = {request.block_bytes for request in requests if request.block_bytes is not None}
    if not sizes:
        return DEFAULT_BLOCK_BYTES
    size = -(-max(sizes) // 32) * 32
    if size > MAX_BLOCK_BYTES:
        raise click.UsageError(
            f"The trace has blocks of {format_size(size)}; at most {format_size(MAX_BLOCK_BYTES)} can be replayed: "
            "give --block-bytes."
        )
    if sizes != {size}:
        described = f"{len(sizes)} sizes" if len(sizes) > 1 else f"{min(sizes)} bytes"
        click.echo(f"Blocks of {described} are replayed with {size} bytes each.", err=True)
    return size


def _pool_bytes(pool_blocks: int | None, pool: int | None, block_bytes: int, attach: Path | None) -> int:
    if pool_blocks is not None and pool is not None:
        raise click.UsageError("--pool and --pool-blocks say the same thing; give one of them.")
    if attach is not None and (pool_blocks is not None or pool is not None):
        raise click.UsageError("--attach uses a pool that is there; --pool and --pool-blocks have no effect on it.")
    size = pool if pool is not None else DEFAULT_POOL_BYTES
    if pool_blocks is not None:
        slot = -(-block_bytes // PAGE) * PAGE
        per_slab = SLAB_BYTES // slot if slot <= SLAB_BYTES // 8 else 0
        slabs, slots = divmod(pool_blocks, per_slab) if per_slab else (0, pool_blocks)
        size = slabs * SLAB_BYTES + slots * slot
    if attach is None and size < block_bytes:
        raise click.UsageError(f"A pool of {format_size(size)} has no room for a block of {format_size(block_bytes)}.")
    return -(-size // PAGE) * PAGE


def _policy(
    policy: Algorithm | None, admission: bool, idle_s: float, speed: float | None, attach: Path | None
) -> PolicySpec | None:
    """Return the policy to apply. Idle seconds are in the trace's time, so they are divided by the speed."""
    if policy is None and not admission:
        return None
    if attach is not None:
        raise click.UsageError("--attach uses a data plane that is there, under the policy that it has.")
    if not admission:
        return PolicySpec(POLICY_IN_FORCE, policy or "lru")
    if speed is None:
        raise click.UsageError("--admission goes by how long blocks were idle: give the trace's times with --speed.")
    return PolicySpec(POLICY_IN_FORCE, policy or "lru", admission=True, admission_idle_s=idle_s / speed)


def _plane(
    attach: Path | None, pool_bytes: int, max_blocks: int, policy: PolicySpec | None, disk_tier: int | None
) -> AbstractContextManager[planes.Plane]:
    if attach is None:
        return planes.own(pool_bytes, max_blocks, policy, disk_tier or 0)
    if not attach.is_socket():
        raise click.UsageError(f"--attach: there is no engine socket at {attach}.")
    return nullcontext(planes.running(str(attach)))


def _progress(requests: int, *, quiet: bool) -> Progress:
    """Return a progress bar on standard error, disabled unless that is a terminal."""
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(
        *columns, console=Console(stderr=True), disable=quiet or not sys.stderr.isatty(), transient=True
    )
    progress.add_task("replay", total=requests)
    return progress


def _run(plan: ReplayPlan, plane: planes.Plane, progress: Progress) -> ReplayResult:
    task = progress.task_ids[0]
    return replay(plan, plane, lambda served: progress.update(task, completed=served))
