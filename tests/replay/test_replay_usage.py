"""The command line: what is wrong is said clearly, before anything is started, with exit code 2."""

import pytest
from click.testing import CliRunner

from dataplane.replay.command import main
from tests.replay.traces import write_trace


@pytest.fixture
def trace(tmp_path):
    return write_trace(tmp_path / "trace.jsonl", [[1, 2], [1, 3]])


@pytest.mark.parametrize(
    ("arguments", "said"),
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
        (["--policy", "arc"], "--policy"),
        (["--tenants", "a"], "NAME=WEIGHT"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_options_that_cannot_be_are_a_usage_error(trace, arguments, said):
    done = CliRunner().invoke(main, [str(trace), *arguments])
    assert done.exit_code == 2, done.output
    assert said in done.stderr
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
    assert f"{trace}:3: hash_ids[1]: Expected `int`, got `str`" in done.stderr
