"""A push ends with its answer, or with the process that should answer."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.ingest.fleet import Fleet, FleetNode
from app.push.link import NoAnswer
from app.push.node_sync import NodeSync
from dataplane.protocol.control.snapshots import Ack

pytestmark = pytest.mark.anyio
ENDS_S = 60.0


def sync_of(fleet: Fleet, timeout_s: float) -> NodeSync:
    unused = cast(Any, None)
    return NodeSync(cast(Any, SimpleNamespace(url="ipc://a")), fleet, unused, unused, unused, timeout_s, unused)


async def test_a_push_that_waits_long_for_the_database_brings_its_answer() -> None:
    """The time-out is that of an answer of the node: a push may take many times as long."""
    answer, may_answer = Ack("quotas", 1, "nonce", "", 0.0), asyncio.Event()

    async def push() -> Ack:
        await may_answer.wait()
        return answer

    node = FleetNode("a", "ipc://a", welcomed=True)
    pushing = asyncio.create_task(sync_of(Fleet(), timeout_s=0.0)._unless_forgotten(node, push()))
    await asyncio.wait({pushing}, timeout=0.05)
    may_answer.set()
    async with asyncio.timeout(ENDS_S):
        assert await pushing is answer


async def test_a_push_ends_with_its_node_and_its_own_failure_is_not_left() -> None:
    began, unhandled, loop = asyncio.Event(), [], asyncio.get_running_loop()

    async def push() -> Ack:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise NoAnswer("the connection was closed")

    async def forget() -> None:
        fleet, node = Fleet(), FleetNode("a", "ipc://a", welcomed=True)
        pushing = asyncio.create_task(sync_of(fleet, ENDS_S)._unless_forgotten(node, push()))
        await began.wait()
        node.welcomed = False
        fleet.change_signal.notify()
        with pytest.raises(NoAnswer, match="the node went away"):
            await pushing

    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: unhandled.append(context["message"]))
    try:
        async with asyncio.timeout(ENDS_S):
            await forget()
        await asyncio.sleep(0)  # the loop refers to the task that it has just run
        gc.collect()
    finally:
        loop.set_exception_handler(before)
    assert unhandled == []
