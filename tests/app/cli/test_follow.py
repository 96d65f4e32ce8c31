"""`larder events --follow`, across restarts of the management plane."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.cli.support.api import event_stream
from app.observe.catalogue.fleet import PushSent
from app.observe.events import BACKLOG
from tests.app.plane import serving, settings_in
from tests.forked import Forked
from tests.free_port import free_port

pytestmark = pytest.mark.anyio


@contextmanager
def following(port: int, *options: str) -> Iterator[Forked]:
    environ = {**os.environ, "LARDER_URL": f"http://127.0.0.1:{port}", "LARDER_TOKEN": ""}
    pipe = subprocess.PIPE
    arguments = ("events", "list", "--follow", "-o", "json", *options)
    with Forked("app", *arguments, env=environ, stdout=pipe, stderr=pipe, text=True) as command:
        try:
            yield command
        finally:
            if command.poll() is None:
                command.kill()


async def printed(command: Forked) -> AsyncIterator[tuple[str, str]]:
    """Yield name and tenant of each event that the command prints."""
    assert command.stdout is not None
    text = ""
    while line := await asyncio.to_thread(command.stdout.readline):
        text += line
        if line == "}\n":
            event: dict[str, Any] = json.loads(text)
            yield event["name"], event["fields"].get("tenant", "")
            text = ""


async def until(events: AsyncIterator[tuple[str, str]], tenant: str) -> list[str]:
    """Return the tenants of created quotas, up to this one."""
    found = []
    async with asyncio.timeout(60):
        async for name, about in events:
            if name == "quota.created":
                found.append(about)
            if found[-1:] == [tenant]:
                break
    return found


async def ended(command: Forked) -> tuple[int, str]:
    assert command.stderr is not None
    errors = await asyncio.to_thread(command.stderr.read)
    return await asyncio.to_thread(command.wait, 60), errors


async def test_follow_loses_and_repeats_no_event_across_a_restart(tmp_path: Path) -> None:
    settings, port, first = settings_in(tmp_path), free_port(), AsyncExitStack()
    plane = await first.enter_async_context(serving(settings, port))
    await plane.put_quota("a", wait="0s")
    with following(port) as command:
        events = printed(command)
        async with first:
            found = await until(events, "a")
            await plane.put_quota("b", wait="0s")
            found += await until(events, "b")
            plane.app.parts.bus.close()  # ends the streams, as a stop does
            await plane.put_quota("c", wait="0s")
        async with serving(settings, port) as plane:
            await plane.put_quota("d", wait="0s")
            found += await until(events, "d")
            await plane.put_quota("e", wait="0s")
            found += await until(events, "e")
            command.send_signal(signal.SIGINT)
            code, errors = await ended(command)
    assert found == ["a", "b", "c", "d", "e"]
    assert code == 0
    assert "trying again" in errors
    assert errors.endswith("larder: connected again\n")


def test_an_event_that_occurs_while_the_history_is_read_is_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [{"at": float(at), "name": "quota.created", "node": "", "actor": "", "fields": {}} for at in (2, 3)]
    overview = b'event: overview\ndata: {"at": 1.0}\n\n'
    live = [b"id: b-%d\nevent: event\ndata: %s\n\n" % (n, json.dumps(event).encode()) for n, event in enumerate(stored)]
    connections = iter([[overview], [overview, *live]])
    monkeypatch.setattr(event_stream, "stream", lambda *_: iter(next(connections)))
    monkeypatch.setattr(event_stream, "every", lambda *_: {"items": stored[:1]})
    found: list[float] = []
    for batch in event_stream.FollowedEvents(None, lambda _: None).batches():
        found += [event["at"] for event in batch]
        if 3.0 in found:
            break
    assert found == [2.0, 3.0]


async def test_follow_reports_how_many_events_are_missing(tmp_path: Path) -> None:
    async with serving(settings_in(tmp_path)) as plane:
        with following(plane.http.base_url.port or 0, "--name", "quota.*") as command:
            events = printed(command)
            await plane.put_quota("a", wait="0s")
            await until(events, "a")
            for number in range(2 * BACKLOG):
                plane.app.parts.bus.publish(PushSent("quotas", number, ""))
            await plane.put_quota("b", wait="0s")
            await until(events, "b")
            command.send_signal(signal.SIGINT)
            code, errors = await ended(command)
    assert code == 0
    assert "events are missing" in errors


async def test_follow_ends_when_nothing_reads_its_output(tmp_path: Path) -> None:
    async with serving(settings_in(tmp_path)) as plane:
        await plane.put_quota("a", wait="0s")
        with following(plane.http.base_url.port or 0) as command:
            assert command.stdout is not None
            await until(printed(command), "a")
            command.stdout.close()
            assert await ended(command) == (1, "")
