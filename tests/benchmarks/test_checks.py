"""What benchmarks check beside times: the checks fail when they should."""

from pathlib import Path

import pytest

from benchmarks.data_plane.views import _are_same_memory
from benchmarks.ipc.queue_process import Sequence, kills, message
from benchmarks.management_plane.observability import TENANTS, written_trace
from benchmarks.management_plane.uptime import ends_of
from dataplane.replay.trace import read_trace

TORN = message(1)[:500] + message(2)[500:]


def test_copies_are_not_the_same_memory() -> None:
    block = bytearray(32 << 20)
    assert _are_same_memory(memoryview(block), memoryview(block))
    assert not _are_same_memory(memoryview(bytes(block)), memoryview(bytes(block)))


@pytest.mark.parametrize(
    "received",
    [
        [message(1), message(2)],
        [message(0), message(2)],
        [message(0), message(0)],
        [message(0), message(2), message(1)],
        [message(0), TORN],
        [message(0), message(1)[:-8]],
        [message(0), bytes(1000)],
        [message(0), b""],
    ],
    ids=["first lost", "lost", "twice", "swapped", "torn", "cut", "zeros", "empty"],
)
def test_a_message_that_is_not_the_next_one_is_wrong(received: list[bytes]) -> None:
    sequence = Sequence()
    assert sum(map(sequence.is_wrong, received))


def test_kills_lose_and_change_no_message() -> None:
    assert kills({"kills": 2})["wrong"] == 0


@pytest.mark.parametrize("samples", [2, 3, 7])
def test_growth_is_that_of_all_rounds_after_the_first(samples: int) -> None:
    assert ends_of([100.0 + number for number in range(samples)]) == (100.0, 100.0 + samples - 1)
    assert ends_of([100.0] * samples) == (100.0, 100.0)


def test_one_round_with_more_garbage_is_no_growth() -> None:
    for late in range(7):
        assert ends_of([100.0 + 10 * (number == late) for number in range(7)]) == (100.0, 100.0)


def test_the_observed_trace_has_three_tenants_that_share_no_prefix(tmp_path: Path) -> None:
    requests = read_trace(written_trace(tmp_path / "trace.jsonl", 300))
    heads = {(request.hash_ids[0], request.tenant) for request in requests}
    assert {tenant for _, tenant in heads} == set(TENANTS)
    assert len({block for block, _ in heads}) == len(heads)
