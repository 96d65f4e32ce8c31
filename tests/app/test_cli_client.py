"""How the command line asks: for how long, and what it says when nothing comes."""

import json
import socket

import pytest

from app.cli import show
from tests.app.command import larder
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio


async def test_a_larder_that_hangs_is_given_up_when_one_likes(plane: Plane) -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        url = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        code, out, err = await larder(plane, "quotas", "list", "--url", url, "--timeout", "1s")
        assert (code, out, err) == (1, "", f"Error: {url} did not answer within 1 s (--timeout)\n")
    for wrong in ("0", "soon"):
        code, _, err = await larder(plane, "status", "--timeout", wrong)
        assert (code, "--timeout" in err) == (2, True)


async def test_deletions_take_yes_and_errors_name_options(plane: Plane, node: FakeNode) -> None:
    await plane.put_quota("acme", 1)
    assert (await larder(plane, "quotas", "delete", "acme", "--yes"))[0] == 0
    code, _, err = await larder(plane, "rates", "set", "r", "--model", "m", "--tokens-per-s", "0")
    assert code == 1
    assert err.startswith("Error: --tokens-per-s: expected more than 0")
    assert (await larder(plane, "rates", "set", "r", "--model", "m", "--tokens-per-s", "10"))[0] == 0
    code, out, _ = await larder(plane, "rates", "get", "r")
    assert (code, json.loads(out)["model"]) == (0, "m")
    assert (await larder(plane, "usage", "--from", "2026-11-01", "--to", "2026-11-02"))[0] == 0


async def test_events_pushes_and_replicas_are_listed(plane: Plane, node: FakeNode) -> None:
    await plane.put_quota("acme", 1)
    code, out, err = await larder(plane, "pushes", "--type", "quotas", "--state", "acked")
    assert (code, err, "quotas 1" in out) == (0, "", True)
    code, out, err = await larder(plane, "replicas")
    assert (code, err, "this one" in out) == (0, "", True)
    code, out, err = await larder(plane, "events", "--since", "1h")
    assert err == ""
    assert (code, err, out[:8]) == (0, "", "Events (")


def test_what_others_wrote_does_not_steer_the_terminal() -> None:
    assert show.plain("a\u202eb\x1b[1m") == "a\\u202eb\\x1b[1m"
    assert (show.plain(" "), show.plain("naïve 名"), show.plain("a\nb")) == ("' '", "naïve 名", "a\nb")


async def test_what_a_wide_list_shows_can_be_asked_for(plane: Plane, node: FakeNode) -> None:
    code, out, err = await larder(plane, "blocks", "--wide")
    assert (code, err) == (0, "")
    code, out, err = await larder(plane, "usage", "--tenant", "nobody")
    assert (code, err) == (0, "")
    assert "nothing was used by nobody in this time" in out


async def test_a_postgres_that_is_not_there_is_told_so(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("LARDER_DATABASE_URL", f"postgresql://larder:secret@127.0.0.1:{port}/larder")
    code, out, err = await larder(plane, "db", "check")
    assert (code, out) == (1, "")
    assert "the database does not answer: nothing listens at its address" in err
    assert "secret" not in err
