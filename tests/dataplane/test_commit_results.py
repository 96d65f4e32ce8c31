"""What a commit says about blocks that were refused."""

from collections.abc import Callable

from dataplane.client import CommitResult, attach
from dataplane.protocol.codes import Code, ReserveOutcome
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane


def test_a_partial_commit_returns_the_refused_blocks_and_reasons(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(pool_bytes="4MiB").start()
    with (
        attach(plane.socket, [make.space(block_bytes=make.MIB)], timeout_s=30, group="engine") as client,
        client.reserve(make.keys(6), make.MIB) as reservation,
    ):
        granted = len(reservation.writable)
        expected = dict.fromkeys(range(granted, 6), Code.POOL_FULL)
        assert 0 < granted < 6
        result = reservation.commit()
    assert (result.blocks, result.code) == (granted, None)
    assert result.refused_blocks == expected
    assert result.refused == reservation.refused == {Code.POOL_FULL: 6 - granted}
    assert repr(result) == f"CommitResult(blocks={granted}, code=None, refused={{POOL_FULL: {6 - granted}}})"


def test_a_commit_without_a_data_plane_refuses_every_block(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane().start()
    with attach(plane.socket, [make.space()], timeout_s=30, group="engine") as client:
        waiting = client.reserve(make.keys(2, "waiting"), 4096)
        plane.kill()
        assert client.reserve(make.keys(3), 4096).commit().refused == {Code.UNAVAILABLE: 3}
        failed = waiting.commit()
        assert (failed.blocks, failed.code, failed.refused) == (0, Code.UNAVAILABLE, {Code.UNAVAILABLE: 2})


def test_blocks_that_are_there_already_or_on_their_way_were_not_refused() -> None:
    others = bytes((ReserveOutcome.PRESENT, ReserveOutcome.BUSY, ReserveOutcome.WRITE))
    assert CommitResult(1, None, others).refused_blocks == {}
    assert repr(CommitResult(1, None, others)) == "CommitResult(blocks=1, code=None)"
