"""The command line: usage errors have a clear message and exit code 2 before anything is started."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dataplane.core.blocks.slabs import Slabs, slot_bytes
from dataplane.replay.command import _pool_bytes, main
from tests.replay.traces import write_trace


@pytest.fixture
def trace(tmp_path):
    return write_trace(tmp_path / "trace.jsonl", [[1, 2], [1, 3]])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--pool", "1GiB", "--pool-blocks", "5"], "give one of them"),
        (["--attach", "absent.sock"], "no engine socket"),
        (["--attach", "absent.sock", "--pool", "1GiB"], "no effect"),
        (["--attach", "absent.sock", "--pool-blocks", "5"], "no effect"),
        (["--pool", "plenty"], "expected a size"),
        (["--pool", "0"], "at least 1 byte"),
        (["--pool", "4KiB", "--block-bytes", "8KiB"], "no room for a block"),
        (["--pool-blocks", "0"], "--pool-blocks"),
        (["--block-bytes", "100"], "multiple of 32"),
        (["--block-bytes", "0"], "at least 1 byte"),
        (["--block-bytes", "2TiB"], "at most 256 MiB"),
        (["--engines", "0"], "--engines"),
        (["--engines", "65"], "--engines"),
        (["--limit", "0"], "--limit"),
        (["--speed", "0"], "above 0"),
        (["--speed", "nan"], "above 0"),
        (["--speed", "inf"], "above 0"),
        (["--policy", "mru"], "--policy"),
        (["--admission"], "--speed"),
        (["--admission", "--speed", "2", "--admission-idle", "0"], "--admission-idle"),
        (["--attach", "absent.sock", "--policy", "arc"], "--attach"),
        (["--tenants", "a"], "NAME=WEIGHT"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_invalid_options_are_a_usage_error(trace, arguments, expected):
    done = CliRunner().invoke(main, [str(trace), *arguments])
    assert done.exit_code == 2, done.output
    assert expected in done.stderr
    assert done.stdout == ""


def test_a_missing_trace_is_a_usage_error(tmp_path):
    done = CliRunner().invoke(main, [str(tmp_path / "absent.jsonl")])
    assert done.exit_code == 2
    assert "absent.jsonl" in done.stderr


def test_a_bad_line_is_a_usage_error_with_file_line_and_field(trace):
    with trace.open("a") as file:
        file.write('{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": [1, "2"]}\n')
    done = CliRunner().invoke(main, [str(trace)])
    assert done.exit_code == 2
    assert f"{trace}:3: hash_ids[1]: expected a whole number, got text" in done.stderr


@pytest.mark.parametrize("block_bytes", [32, 1024, 4096, 4128, 9_024, 100_000, 256 << 10, 300_000, 1 << 20, 3 << 20])
@pytest.mark.parametrize("blocks", [1, 7, 300])
def test_a_pool_of_so_many_blocks_has_room_for_them_and_no_more(block_bytes: int, blocks: int) -> None:
    slabs = Slabs(_pool_bytes(blocks, None, block_bytes, None), 64 << 20)
    size = slot_bytes(block_bytes, block_bytes)
    taken = 0
    while segment := slabs.plan_segment(1, size):
        slabs.add_segment(segment)
        while slabs.take(1, size) is not None:
            taken += 1
    assert taken == blocks


LINE = '{"timestamp":%d,"input_length":256,"output_length":0,"hash_ids":[%d],"block_bytes":%d,"tenant":"%s"}\n'


def recorded(tmp_path: Path, *, blocks: int, sizes: tuple[int, ...], tenants: tuple[str, ...]) -> Path:
    """Two rounds over so many blocks, one a request."""
    trace = tmp_path / "recorded.jsonl"
    lines = (LINE % (n, n % blocks, sizes[n % len(sizes)], tenants[n % len(tenants)]) for n in range(2 * blocks))
    trace.write_text("".join(lines))
    return trace


def outcome(*arguments: str | int | Path) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return {**json.loads(result.stdout.splitlines()[-1]), "stderr": result.stderr}


def test_a_recorded_trace_is_replayed_with_its_tenants_and_the_size_of_its_blocks(tmp_path: Path) -> None:
    # An odd number of blocks, so that in the second round each is requested by the other tenant.
    trace = recorded(tmp_path, blocks=9, sizes=(100,), tenants=("acme", "_default"))
    seen = outcome(trace)
    assert (seen["tenants"], seen["blocks_hit"], seen["block_bytes"]) == (2, 0, 128)
    assert seen["stderr"] == "Blocks of 100 bytes are replayed with 128 bytes each.\n"
    seen = outcome(trace, "--tenants", "one=1", "--block-bytes", "4KiB")
    assert (seen["tenants"], seen["blocks_hit"], seen["block_bytes"]) == (1, 9, 4096), "what is asked for wins"
    assert seen["stderr"] == ""
    trace = recorded(tmp_path, blocks=40, sizes=(5_024,), tenants=("acme",))
    assert outcome(trace, "--pool-blocks", 39, "--policy", "noop")["blocks_stored"] == 39, "however large blocks are"
    trace = recorded(tmp_path, blocks=40, sizes=(1 << 19, 1 << 20), tenants=("acme",))
    seen = outcome(trace, "--pool", "20MiB")
    assert (seen["block_bytes"], seen["hit_ratio"]) == (1 << 20, 0), "40 never fit in 20"
    assert seen["stderr"] == "Blocks of 2 sizes are replayed with 1048576 bytes each.\n"
