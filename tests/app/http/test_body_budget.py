"""Request bodies have a budget of bytes: a crowd that sends large ones is refused, and others are served."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app.errors import ServerBusy, TooManyRequests
from app.services.base.body_budget import FREE_BYTES, SHARE, BodyBudget
from tests.app.callers import bearer, create_token
from tests.app.plane import WAIT_S, Plane, serving, settings_in

BUDGET = 8 << 20
PART = BUDGET // SHARE


def test_a_single_body_may_use_the_whole_budget_and_releases_it() -> None:
    budget = BodyBudget(BUDGET)
    with budget.body("a") as body:
        body.received(BUDGET)
        body.received(FREE_BYTES)
        assert budget.used_bytes == BUDGET
        with pytest.raises(ServerBusy, match=r"app\.body_budget_bytes"):
            body.received(1)
    assert budget.used_bytes == 0


def test_small_bodies_do_not_count() -> None:
    budget = BodyBudget(BUDGET)
    with budget.body("a") as large, budget.body("b") as small:
        large.received(FREE_BYTES + BUDGET)
        small.received(FREE_BYTES)
        assert budget.used_bytes == BUDGET
        with pytest.raises(ServerBusy):
            small.received(1)


def test_bodies_of_several_callers_have_three_quarters() -> None:
    budget = BodyBudget(BUDGET)
    with ExitStack() as bodies:
        for at in range(3):
            bodies.enter_context(budget.body(f"{at}")).received(FREE_BYTES + PART)
        with pytest.raises(ServerBusy, match=r"app\.body_budget_bytes"):
            bodies.enter_context(budget.body("3")).received(FREE_BYTES + 1)
    assert budget.used_bytes == 0


def test_several_bodies_of_a_caller_have_a_share_and_another_caller_has_its_own() -> None:
    budget = BodyBudget(BUDGET)
    with ExitStack() as bodies:
        first, second = (bodies.enter_context(budget.body("a")) for _ in range(2))
        first.received(FREE_BYTES + PART - 10)
        second.received(FREE_BYTES + 10)
        with pytest.raises(TooManyRequests, match="send one after the other"):
            second.received(1)
        with budget.body("b") as other:
            other.received(FREE_BYTES + 2 * PART)
    with budget.body("a") as again:
        again.received(BUDGET)
    assert budget.used_bytes == 0


class Unfinished:
    """A request that sends all of its body but the last byte."""

    def __init__(self, plane: Plane, path: str, nbytes: int, token: str = "") -> None:
        self._url = urlsplit(str(plane.http.base_url))
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{authorization}"
            f"Content-Length: {nbytes}\r\n\r\n"
        )
        self._nbytes = nbytes

    async def begin(self) -> "Unfinished":
        self._reader, self._writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        self._writer.write(self._head.encode())
        self._writer.write(b'"' + b"x" * (self._nbytes - 2))
        return self

    async def status(self) -> int:
        """Return the status of the answer, which comes although the body is not complete."""
        async with asyncio.timeout(WAIT_S):
            return int((await self._reader.readline()).split()[1])

    def close(self) -> None:
        self._writer.transport.abort()


@pytest.mark.anyio
async def test_unfinished_bodies_stay_within_the_budget_and_release_it(socket_dir: Path) -> None:
    path = "/api/v1/actions/lookup"
    async with serving(settings_in(socket_dir, body_budget_bytes=BUDGET)) as plane:
        budget = plane.app.parts.limits.body_budget
        crowd = [await Unfinished(plane, path, PART).begin() for _ in range(20)]
        statuses = [asyncio.create_task(each.status()) for each in crowd]
        async with asyncio.timeout(WAIT_S):
            while sum(task.done() for task in statuses) < len(crowd) - 1:
                assert budget.used_bytes <= BUDGET
                assert (await plane.http.get("/healthz")).status_code == 200
                await asyncio.sleep(0.01)
        assert {task.result() for task in statuses if task.done()} == {429}
        assert (await plane.http.post(path, json={"model": "m", "tokens": [1]})).status_code != 429
        for task in statuses:
            task.cancel()
        for each in crowd:
            each.close()
        await plane.until(lambda: not budget.used_bytes)


@pytest.mark.anyio
async def test_the_body_of_an_unknown_caller_is_not_read(guarded: Plane) -> None:
    login = await Unfinished(guarded, "/api/v1/session", 16 << 20).begin()
    assert await login.status() == 413
    apply = await Unfinished(guarded, "/api/v1/apply", 16 << 20).begin()
    assert await apply.status() == 401
    assert guarded.app.parts.limits.body_budget.used_bytes == 0
    viewer = await create_token(guarded, "viewer")
    assert (await guarded.http.get("/api/v1/whoami", headers=bearer(viewer))).status_code == 200
    quota = await Unfinished(guarded, "/api/v1/tokens", 1 << 20, viewer).begin()
    assert await quota.status() == 403
    for each in (login, apply, quota):
        each.close()
