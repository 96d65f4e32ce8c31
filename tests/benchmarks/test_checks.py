"""What benchmarks check beside times: the checks fail when they should."""

import pytest

from benchmarks.data_plane.views import _are_same_memory
from benchmarks.ipc.queue_process import Sequence, kills, message

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
