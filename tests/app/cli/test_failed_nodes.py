"""Commands about all nodes, when some or all of them do not answer: exit code 1, and each failure once."""

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner

from app.cli import larder as root
from app.cli.support.api.http import Response
from app.cli.support.exit_codes import check_nodes
from app.cli.support.printing.terminal import say
from app.cli.support.resources import options
from app.cli.support.resources.options import Output, output_option, watch_option
from app.cli.support.resources.verbs import show_dry_run
from tests.app.command import larder
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

KEY = "ab" * 32
PREFIX = ("--model", "m", "--tokens", "1,2", "--chunk-tokens", "1")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("blocks",),
    ("blocks", "get", KEY),
    ("blocks", "get", KEY[:8]),
    ("prefixes",),
    ("sessions",),
    ("sessions", "describe", "s1"),
    ("sessions", "release", "s1"),
    ("why", "--request", "cmpl-1"),
    ("lookup", *PREFIX),
    ("locate", *PREFIX),
    ("verify", "--tenant", "acme"),
    ("invalidate", "--tenant", "acme", "--yes"),
    ("demote", "--tenant", "acme", "--yes"),
    ("clear", "--yes"),
    ("move", "--to", "disk", "--tenant", "acme", "--yes"),
    ("compress", "disk", "--yes"),
)
AWAY = {"node": "b", "error": "b: did not answer within 5 s"}
BLOCK = {
    "key": KEY, "tenant": "acme", "model": "m", "node": "a", "space": "cd" * 16, "state": "ready", "tier": "l1",
    "bytes": 1, "leases": 0, "pins": [], "hits": 0, "stored_at": 1.0, "used_at": 1.0, "checksum": False,
}  # fmt: skip
SESSION = {
    "session": "s1", "tenant": "acme", "node": "a", "model": "m", "released": False, "retained_until": None,
    "chunks": 1, "bytes": {}, "private_bytes": 0, "started_at": 1.0, "used_at": 1.0,
}  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("output", ["table", "json"])
async def test_a_node_that_fails_is_named_once_and_fails_the_command(
    plane: Plane, node: FakeNode, command: tuple[str, ...], output: str
) -> None:
    node.unable = True
    code, out, err = await larder(plane, *command, "-o", output)
    assert code == 1, out + err
    printed = err if output == "json" else out + err
    assert printed.count("node-a: ") <= 1, printed
    assert "node-a: unsupported: not known here" in out + err


@pytest.mark.parametrize(
    "command", [("blocks",), ("sessions",), ("blocks", "get", KEY), ("sessions", "describe", "s1")]
)
@pytest.mark.parametrize("output", ["table", "json", "name"])
def test_the_answers_of_other_nodes_are_printed(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], output: str
) -> None:
    """The failed node is in the first page of a list; the items are in both."""
    item = BLOCK if command[0] == "blocks" else SESSION

    def request(method: str, url: str, headers: dict[str, str], *, query: dict[str, str], **_: object) -> Response:
        answer: dict[str, Any] = {"items": [], "total": 0, "next_cursor": ""}
        if url.endswith(("/blocks", "/sessions")):
            first = "cursor" not in query
            answer = {"items": [item], "failed_nodes": [AWAY] * first, "next_cursor": "second" * first}
        elif "/events/" not in url:
            answer = {"items": [item], "total": 1, "failed_nodes": [AWAY]}
        return Response(200, json.dumps(answer).encode())

    monkeypatch.setattr("app.cli.support.api.http.request", request)
    done = CliRunner().invoke(root, [*command, "--url", "http://larder.example", "-o", output])
    assert (done.exit_code, done.stderr) == (1, "Error: not every node answered: b: did not answer within 5 s\n")
    if output == "json":
        answer = json.loads(done.stdout)
        assert (answer["items"], answer["failed_nodes"]) == ([item] * (1 if command[1:] else 2), [AWAY])
    else:
        assert done.stdout, "the item"
        assert AWAY["error"] not in done.stdout


def test_a_dry_run_names_a_node_that_does_not_answer_once(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = {"node": "b", "selected": True, "accepted": False, "faults": [], "evictions": [], "error": AWAY["error"]}
    with pytest.raises(click.ClickException, match="not every node would accept"):
        show_dry_run({"items": [verdict], "accepted": False}, "policy", None, Output())
    assert capsys.readouterr().out == f"{AWAY['error']}\n"


def test_a_failed_node_does_not_end_a_watched_list(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = iter([("one", []), ("one", [AWAY]), ("one", [AWAY]), ("two", [])])

    @click.command()
    @output_option
    @watch_option
    def listing(output: Output) -> None:
        text, failed = next(frames, ("", []))
        if not text:
            raise click.Abort
        say(text)
        check_nodes(failed)

    monkeypatch.setattr(options, "POLL_S", 0.0)
    shown = CliRunner().invoke(listing, ["--watch"])
    assert shown.stdout == "one\ntwo\n"
    assert shown.stderr == f"not every node answered: {AWAY['error']}\nAborted!\n"
