"""How the command line asks: for how long, and what it says when nothing comes."""

import socket

import pytest

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


async def test_what_a_wide_list_shows_can_be_asked_for(plane: Plane, node: FakeNode) -> None:
    code, out, err = await larder(plane, "blocks", "--wide")
    assert (code, err) == (0, "")
    code, out, err = await larder(plane, "usage", "--tenant", "nobody")
    assert (code, err) == (0, "")
    assert "nothing was used by nobody in this time" in out
