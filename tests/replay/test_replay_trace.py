"""Trace files: how they are read, and messages about invalid lines."""

from pathlib import Path

import pytest

from dataplane.replay.trace import TraceError, read_trace
from tests.replay.traces import make_trace, write_trace

GOOD = '{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}'


def _read(tmp_path: Path, text: str | bytes, limit: int | None = None):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(path, limit)


def test_a_trace_is_read_in_file_order(tmp_path):
    trace = make_trace(50)
    requests = read_trace(write_trace(tmp_path / "trace.jsonl", trace))
    assert [list(request.hash_ids) for request in requests] == trace
    assert [request.timestamp for request in requests[:3]] == [0, 10, 20]


@pytest.mark.parametrize("start", [0, 5_000, 1.7e12])
def test_times_count_from_the_earliest_request(tmp_path, start):
    lines = (GOOD.replace('"timestamp": 0', f'"timestamp": {start + after}') for after in (20, 0, 1_500))
    assert [request.timestamp for request in _read(tmp_path, "\n".join(lines))] == [20, 0, 1_500]


def test_a_limit_reads_no_further_than_it_must(tmp_path):
    assert len(_read(tmp_path, f"{GOOD}\n{GOOD}\nnot JSON\n", limit=2)) == 2


def test_empty_lines_a_missing_last_newline_and_unknown_fields_are_fine(tmp_path):
    more = GOOD.replace("}", ', "session": "x"}')
    assert len(_read(tmp_path, f"\n{GOOD}\n\n{more}")) == 2


def test_a_recorded_request_has_its_tenant_and_the_size_of_its_blocks(tmp_path):
    named = GOOD.replace("}", ', "tenant": "acme", "block_bytes": 64}')
    default = GOOD.replace("}", ', "tenant": "_default"}')
    requests = _read(tmp_path, f"{named}\n{default}\n{GOOD}")
    assert [(r.salt, r.block_bytes) for r in requests] == [("acme", 64), ("", None), ("", None)]


def test_a_request_without_blocks_is_a_request(tmp_path):
    assert _read(tmp_path, GOOD.replace("[0, 1]", "[]"))[0].hash_ids == ()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (GOOD.replace("[0, 1]", '"0, 1"'), "hash_ids: expected a list"),
        (GOOD.replace("[0, 1]", "[0, -1]"), "hash_ids[1]: expected a whole number, at least 0"),
        (GOOD.replace("[0, 1]", "[0, 1.5]"), "hash_ids[1]: expected a whole number"),
        (GOOD.replace("[0, 1]", "[99999999999999999999]"), "hash_ids[0]: "),
        (GOOD.replace("[0, 1]", "null"), "hash_ids: expected a list"),
        (GOOD.replace('"timestamp": 0', '"timestamp": -5'), "timestamp: expected a number, at least 0"),
        (GOOD.replace('"timestamp": 0', '"timestamp": "now"'), "timestamp: expected a number"),
        (GOOD.replace('"timestamp": 0, ', ""), "timestamp: expected a number, got nothing"),
        (GOOD.replace("700", "7.5"), "input_length: expected a whole number"),
        (GOOD.replace("}", ', "block_bytes": 0}'), "block_bytes: expected a whole number, at least 1"),
        (GOOD.replace("}", ', "tenant": "a@b"}'), "tenant: "),
        ("[1, 2]", "expected a map"),
        ("{", "expected a JSON object"),
        ("\x00\x01", "expected a JSON object"),
    ],
)
def test_a_bad_line_is_named_with_file_line_and_field(tmp_path, line, expected):
    with pytest.raises(TraceError) as caught:
        _read(tmp_path, f"{GOOD}\n{line}\n{GOOD}\n")
    assert str(caught.value).startswith(f"{tmp_path}/trace.jsonl:2: ")
    assert expected in str(caught.value)


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path):
    with pytest.raises(TraceError, match=r"trace\.jsonl:1: "):
        _read(tmp_path, b'{"timestamp": "\xff\xfe"}')


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_trace_without_requests_is_an_error(tmp_path, text):
    with pytest.raises(TraceError, match="at least one request"):
        _read(tmp_path, text)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read_trace(tmp_path / "absent.jsonl")
