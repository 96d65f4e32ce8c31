"""A push continues the trace of the change that it delivers, whichever manager pushes."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider

from app.settings import Settings
from dataplane.base import tracing
from dataplane.base.spans import SpanMaker
from tests.app.fake_node import FakeNode
from tests.app.plane import serving

pytestmark = pytest.mark.anyio
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def traced() -> Iterator[None]:
    tracing.use(SpanMaker(TracerProvider(shutdown_on_exit=False).get_tracer("test")))
    yield
    tracing.use(None)


async def test_another_manager_continues_the_trace_of_a_change(
    settings: Settings, new_node: FakeNode, traced: None
) -> None:
    async with serving(settings) as leader, serving(settings) as follower:
        await leader.until_state("in_sync")
        change = await follower.http.put(
            "/api/v1/quotas/acme?wait=0s",
            json={"limit_bytes": 1},
            headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
        )
        assert change.status_code == 201
        leader.app.parts.foundation.managers.missed()  # SQLite has no notifications
        await leader.until(lambda: new_node.received[-1].generation == 1)
        assert [plane.app.parts.foundation.leader_election.pushing for plane in (leader, follower)] == [True, False]
    assert (new_node.received[-1].type, new_node.received[-1].traceparent[3:35]) == ("quotas", TRACE)
