"""Turns are shared out by caller: a caller that requests all of them delays only itself."""

import asyncio
import random
from collections import Counter

import pytest

from app.errors import TooManyRequests
from app.services.base.fair_limiter import Bounds, FairLimiter
from app.services.base.principals import Principal
from app.services.records.tokenizing import BOUNDS
from tests.app.plane import Plane
from tests.app.tokenizer_files import put
from tests.app.waiting import until

pytestmark = pytest.mark.anyio


class Work:
    """Work that is done by turns, until the test ends it."""

    def __init__(self, **bounds: int) -> None:
        self.turns = FairLimiter("things", Bounds(**bounds))
        self.began: list[str] = []
        self.may_end: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, *names: str) -> None:
        """`a1` is the first thing of `a`. Each gets as far as it can."""
        for name in names:
            self.may_end[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._do(name))
            await settled()

    async def _do(self, name: str) -> None:
        async with self.turns.turn(name[0]):
            self.began.append(name)
            await self.may_end[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self.may_end[name].set()
            await self.tasks[name]
            await settled()


async def settled() -> None:
    """Everything that can go on did."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_caller_never_has_all_turns_and_another_begins_at_once() -> None:
    work = Work(at_once=3, each_at_once=2, waiting=9, each_waiting=9)
    await work.ask("a1", "a2", "a3", "a4")
    assert work.began == ["a1", "a2"]
    await work.ask("b1")
    assert work.began == ["a1", "a2", "b1"]
    await work.ask("b2", "c1")
    await work.end("b1")
    assert work.began[3:] == ["b2"], "a has two already"
    await work.end("b2")
    assert work.began[4:] == ["c1"]
    await work.end("a1")
    assert work.began[5:] == ["a3"]
    await work.end("a2", "c1", "a3", "a4")
    assert (work.turns.waiting, sum(work.turns._running.values())) == (0, 0)


async def test_waiting_callers_take_turns() -> None:
    work = Work(at_once=1, each_at_once=1, waiting=9, each_waiting=9)
    await work.ask("a1", "a2", "a3", "b1", "b2", "c1")
    await work.end("a1", "a2", "b1", "c1", "a3", "b2")
    assert work.began == ["a1", "a2", "b1", "c1", "a3", "b2"]


async def test_as_many_wait_as_may_and_one_caller_cannot_fill_the_queue() -> None:
    work = Work(at_once=1, each_at_once=1, waiting=3, each_waiting=2)
    await work.ask("a1", "a2", "a3", "a4")
    with pytest.raises(TooManyRequests, match=r"^2 things of yours are waiting"):
        await work.tasks["a4"]
    await work.ask("b1", "c1")
    with pytest.raises(TooManyRequests, match=r"^3 things are waiting"):
        await work.tasks["c1"]
    await work.end("a1")
    await work.ask("c2")
    await work.end("a2", "b1", "a3", "c2")


async def test_a_cancelled_wait_leaves_no_gap_even_at_the_moment_of_its_turn() -> None:
    work = Work(at_once=1, each_at_once=1, waiting=9, each_waiting=9)
    await work.ask("a1", "b1", "c1", "d1")
    work.tasks["b1"].cancel()  # found by the end of a1, before b1 itself knows
    await work.end("a1")
    assert work.began == ["a1", "c1"]
    work.may_end["c1"].set()
    await work.tasks["c1"]  # the turn is d1's now
    work.tasks["d1"].cancel()
    await settled()
    await work.ask("e1")
    await work.end("e1")
    assert work.turns.waiting == 0


@pytest.mark.parametrize("seed", range(20))
async def test_bounds_hold_and_no_caller_is_forgotten(seed: int) -> None:
    chance = random.Random(seed)
    bounds = Bounds(at_once=3, each_at_once=2, waiting=12, each_waiting=4)
    turns, running, done = FairLimiter("things", bounds), Counter[str](), Counter[str]()

    async def work(who: str) -> None:
        try:
            async with turns.turn(who):
                running[who] += 1
                assert running.total() <= bounds.at_once
                assert running[who] <= bounds.each_at_once
                try:
                    for _ in range(chance.randrange(4)):
                        await asyncio.sleep(0)
                finally:
                    running[who] -= 1
                done[who] += 1
        except TooManyRequests:
            done["refused"] += 1

    tasks: list[asyncio.Task[None]] = []
    for _ in range(300):
        tasks.append(asyncio.create_task(work(chance.choice("abcd"))))
        if chance.random() < 0.3:
            chance.choice(tasks).cancel()
        if chance.random() < 0.7:
            await asyncio.sleep(0)
        assert turns.waiting <= bounds.waiting
    async with asyncio.timeout(60):
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in ended} <= {type(None), asyncio.CancelledError}
    assert (turns.waiting, turns._running.total(), running.total()) == (0, 0, 0)
    assert min(done[who] for who in "abcd") > 0


async def test_texts_of_one_token_hold_up_no_other_tokens(plane: Plane) -> None:
    loop = "{% for x in range(99999) %}{% for y in range(99999) %}{% set z = 1 %}{% endfor %}{% endfor %}"
    await put(plane, chat_template=loop)
    tokenizers = plane.app.parts.records.tokenizers
    greedy, other = (Principal(actor=name, token_id=name) for name in ("greedy", "other"))

    def ask() -> asyncio.Task[object]:
        return asyncio.create_task(tokenizers.encode("m", None, [{"role": "user", "content": "w1"}], greedy))

    long = [ask() for _ in range(BOUNDS.each_at_once + BOUNDS.each_waiting)]
    turns = tokenizers._tokenizing._limiter
    await until(lambda: turns.waiting >= BOUNDS.each_waiting)
    with pytest.raises(TooManyRequests, match="16 texts to encode of yours are waiting"):
        await ask()
    assert list((await tokenizers.encode("m", "w1 w2", None, other)).tokens) == [1, 2]
    assert not any(task.done() for task in long)
    for task in long:
        task.cancel()
    await asyncio.gather(*long, return_exceptions=True)
    assert turns.waiting == 0
