"""The engine's blocks by the scheduler's outputs of vLLM up to 0.29."""

from types import SimpleNamespace
from typing import Any

from dataplane.engines.vllm.request_blocks import RequestBlocks


def output(
    new: dict[str, tuple[list[int], ...]] | None = None,
    more: dict[str, tuple[list[int], ...] | None] | None = None,
    resumed: tuple[str, ...] = (),
    finished: tuple[str, ...] = (),
    preempted: set[str] | None = None,
) -> Any:
    """Return what the connector reads of vLLM's `SchedulerOutput`."""
    begun = [SimpleNamespace(req_id=name, block_ids=blocks) for name, blocks in (new or {}).items()]
    added = more or {}
    running = SimpleNamespace(req_ids=list(added), new_block_ids=list(added.values()), resumed_req_ids=set(resumed))
    return SimpleNamespace(
        scheduled_new_reqs=begun,
        scheduled_cached_reqs=running,
        finished_req_ids=set(finished),
        preempted_req_ids=preempted,
    )


def test_a_request_gets_blocks_until_it_ends() -> None:
    blocks = RequestBlocks()
    blocks.follow(output(new={"a": ([1, 2],), "b": ([3],)}))
    blocks.follow(output(more={"a": ([4],), "b": None}))
    assert (blocks.of("a"), blocks.of("b"), blocks.of("c")) == (([1, 2, 4],), ([3],), None)
    blocks.follow(output(more={"b": ([5, 6],)}, finished=("a",)))
    assert (blocks.of("a"), blocks.of("b")) == (None, ([3, 5, 6],))


def test_a_preempted_request_resumes_with_other_blocks() -> None:
    blocks = RequestBlocks()
    blocks.follow(output(new={"a": ([1, 2],)}))
    blocks.follow(output(preempted={"a"}))
    assert blocks.of("a") is None
    blocks.follow(output(more={"a": ([7, 8, 9],)}, resumed=("a",)))
    assert blocks.of("a") == ([7, 8, 9],)


def test_a_name_may_be_used_again_in_the_output_that_ends_its_first_request() -> None:
    blocks = RequestBlocks()
    blocks.follow(output(new={"a": ([1],)}))
    blocks.follow(output(new={"a": ([2],)}, finished=("a",)))
    assert blocks.of("a") == ([2],)


def test_the_lists_of_the_engine_are_not_changed() -> None:
    blocks, given = RequestBlocks(), [1]
    blocks.follow(output(new={"a": (given,)}))
    blocks.follow(output(more={"a": ([2],)}))
    assert given == [1]
