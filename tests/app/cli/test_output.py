"""What commands print: formats, tables that fit, colour, exit codes, and the tree of help texts."""

import asyncio
import json
import re
import socket
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from app.cli import larder as root
from app.cli.support.api import names
from app.cli.support.printing import terminal
from app.cli.support.printing.terminal import Column, cells, shortened, table, wrapped
from app.cli.support.resources import options
from app.cli.support.resources.options import Output, output_option, watch_option
from tests.app.callers import create_token, guarding
from tests.app.command import larder, output, refused
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane

RAW = ("dataplane", "replay", "demo")
"""Commands of other programs, which have their own help."""
COLUMNS = (
    Column("name", lambda row: row[0]),
    Column("size", lambda row: row[1], right=True, drop=1),
    Column("owner", lambda row: row[2], drop=2),
    Column("note", lambda row: row[3], text=True, drop=3),
    Column("id", lambda row: row[0] * 2, wide=True),
)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without what this user keeps; nothing listens at the default URL."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("LARDER_URL", raising=False)
    monkeypatch.delenv("LARDER_TOKEN", raising=False)
    monkeypatch.setenv("LARDER_HTTP_PORT", "9")
    return tmp_path


def run(*arguments: str, typed: str = "") -> Result:
    return CliRunner().invoke(root, list(arguments), input=typed, catch_exceptions=False)


def test_help_is_a_command() -> None:
    assert run("help").output == run("--help").output
    assert run("help", "quotas", "set").output == run("quotas", "set", "--help").output


def commands(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Every command of the tree with its help."""
    command._help_option = None  # click keeps the option of the context that asked first
    yield ctx.command_path, command.get_help(ctx)
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            each = command.get_command(ctx, name)
            assert each is not None
            if name not in RAW:
                yield from commands(each, click.Context(each, info_name=name, parent=ctx))


def tree() -> list[tuple[str, str]]:
    settings = {"terminal_width": 80, "max_content_width": 80, "help_option_names": ["-h", "--help"]}
    return list(commands(root, click.Context(root, info_name="larder", **settings)))  # type: ignore[arg-type]


def test_every_command_has_a_help_text_that_is_a_sentence() -> None:
    for path, text in tree():
        about = text.split("\n\n")[1].strip()
        assert about[0].isupper(), path
        assert all(len(line) <= 80 for line in text.splitlines()), path


def test_every_noun_alone_lists(alone: Path) -> None:
    for path, _ in tree():
        name = path.removeprefix("larder ")
        command = root.get_command(click.Context(root), name)
        if isinstance(command, click.Group) and "list" in command.commands and name not in ("audit", "context"):
            refused = run(name, "--json")
            assert refused.exit_code == 6, name
            assert re.search(r"no Larder answers at .*; start one with 'larder up'", refused.output), name


def test_a_misspelt_command_or_option_is_suggested() -> None:
    for arguments, expected in (
        (["qotas"], "Did you mean 'quotas'?"),
        (["quotas", "lsit"], "'list'"),
        (["quotas", "list", "--limt", "1"], "'--limit'"),
    ):
        refused = run(*arguments)
        assert (refused.exit_code, expected in refused.output) == (2, True), refused.output


def test_columns_are_left_out_by_priority_and_texts_end_at_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("a", "1 MiB", "team-with-a-name", "a note of several words that goes on " * 3), ("名", "2", "-", "")]
    for width, expected in (
        (80, "name   size  owner             note"),
        (45, "name   size  owner"),
        (20, "name   size"),
    ):
        monkeypatch.setattr(terminal, "width", lambda width=width: width)
        table("", COLUMNS, rows)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == expected
        assert all(cells(line) <= width for line in lines)
    table("", COLUMNS, rows, wide=True)
    out = capsys.readouterr().out
    assert ("goes on a note" in out, "aa" in out) == (True, True)
    assert shortened("one two three", 9) == "one two…"
    assert shortened("one two three", 8) == "one two…"
    assert shortened("unbreakable", 5) == "unbr…"
    monkeypatch.setattr(terminal, "width", lambda: 24)
    table("", [Column("name", str), Column("at", lambda _: "11-26 16:21:59Z")], ["prefill-worker-of-rack-17"])
    assert capsys.readouterr().out.splitlines()[1].split("  ") == ["prefill-…rack-17", "11-26 16:21:59Z"]


def test_colour_is_for_terminals_without_no_color(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table("Title", COLUMNS, [])
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    table("Title", COLUMNS, [])
    assert "\x1b[1mTitle" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    table("Title", COLUMNS, [])
    assert "\x1b" not in capsys.readouterr().out


def test_a_watched_list_appends_new_items(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = iter([["a"], ["a"], ["b", "a"]])

    @click.command()
    @output_option
    @watch_option
    def listing(output: Output) -> None:
        items = next(frames, None)
        if items is None:
            raise click.Abort
        output.listing("Names", {"items": items}, [Column("name", lambda item: item)], lambda item: item)

    monkeypatch.setattr(options, "POLL_S", 0.0)
    shown = CliRunner().invoke(listing, ["--watch"])
    assert shown.stdout == "Names (1)\nname\na\nNames (2)\nb\n"
    frames = iter([["a"], ["b"]])
    shown = CliRunner().invoke(listing, ["--watch", "-o", "yaml"])
    assert shown.stdout == "items:\n- a\nitems:\n- b\n"


def test_contexts_are_stored_with_their_tokens_and_a_flag_precedes_the_environment(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[tuple[str, str]] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]

    def request(method: str, url: str, headers: dict[str, str], **_: object) -> object:
        requests.append((url.removesuffix("/api/v1/whoami"), headers.get("Authorization", "")))
        from app.cli.support.api.http import Response

        return Response(200, b'{"actor": "a", "role": "viewer", "tenants": null}')

    monkeypatch.setattr("app.cli.support.api.http.request", request)
    one, two = f"http://127.0.0.1:{free}", "https://two.example"
    assert run("context", "add", "one", "--url", one, "--token-stdin", typed="larder_1\n").exit_code == 0
    assert run("context", "add", "two", "--url", f"{two}/", "--token-stdin", typed="larder_2\n").exit_code == 0
    file = alone / "larder" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    run("whoami")
    run("context", "use", "two")
    run("whoami")
    run("whoami", "--url", one)  # a token is sent to its own server alone
    run("--context", "one", "whoami")
    run("whoami", "--context", "one")
    monkeypatch.setenv("LARDER_URL", "http://three.example")
    monkeypatch.setenv("LARDER_TOKEN", "larder_3")
    run("whoami")
    run("whoami", "--context", "one")
    first, second = (one, "Bearer larder_1"), (two, "Bearer larder_2")
    third = ("http://three.example", "Bearer larder_3")
    assert requests == [first, second, (one, ""), first, first, third, first]
    listed = run("context", "-o", "json")
    assert [(each["name"], each["current"]) for each in json.loads(listed.output)] == [("one", False), ("two", True)]
    assert "larder_1" not in listed.output
    assert run("whoami", "--context", "none").exit_code == 4
    assert run("context", "delete", "two").exit_code == 0
    assert run("context", "use", "two").exit_code == 4
    file.chmod(0o644)
    assert "chmod 600" in run("context").output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_completion_script(shell: str) -> None:
    done = run("completion", shell)
    assert (done.exit_code, "_LARDER_COMPLETE" in done.output) == (0, True)


@pytest.mark.anyio
async def test_each_format_shows_the_same_records(plane: Plane, node: FakeNode) -> None:
    long = "tenant-with-a-name-that-is-as-long-as-they-come-in-practice"
    for name in ("acme", long):
        await plane.put_quota(name, "1GiB")
    out = await output(plane, "quotas")
    assert out == await output(plane, "quotas", "list")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert (await output(plane, "quotas", "-o", "name")).splitlines() == ["acme", long]
    _, as_json, _ = await larder(plane, "quotas", "-o", "json")
    _, as_yaml, _ = await larder(plane, "quotas", "-o", "yaml")
    assert [item["tenant"] for item in yaml.safe_load(as_yaml)["items"]] == ["acme", long]
    assert json.loads(as_json)["total"] == 2
    assert "owner" in await output(plane, "quotas", "-o", "wide")
    await refused(plane, 2, "quotas", "--json", "-o", "yaml")
    assert "acme" in await output(plane, "quotas", "get", "acme")
    code, out, _ = await larder(plane, "version", "-o", "json")
    assert (code, json.loads(out)["server"], list(json.loads(out)["nodes"])) == (0, "0.1.0", ["node-a"])


@pytest.mark.anyio
async def test_a_record_is_described_edited_and_created_once(
    plane: Plane, node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await output(plane, "quotas", "create", "acme", "1GiB")
    err = await refused(plane, 1, "quotas", "create", "acme", "2GiB")
    assert err == "Error: the quota 'acme' exists; 'set' changes it\n"
    monkeypatch.setenv("EDITOR", "sed -i 's/weight:.*/weight: 3/'")
    assert await output(plane, "quotas", "edit", "acme") == "acme: quota changed\n"
    quota = await plane.get("/api/v1/quotas/acme")
    assert (quota["weight"], quota["limit_bytes"]) == (3, 1 << 30)
    assert await output(plane, "quotas", "edit", "acme") == "acme: not changed\n"
    monkeypatch.setenv("EDITOR", "sed -i -e 's/limit_bytes: 1 GiB/limit_bytes: 256MiB/'")
    await output(plane, "quotas", "edit", "acme")
    assert (await plane.get("/api/v1/quotas/acme"))["limit_bytes"] == 256 << 20
    monkeypatch.setenv("EDITOR", "sed -i 's/weight:.*/weight: 0/'")
    assert "weight: expected 0.01 to 1000, got 0" in await refused(plane, 1, "quotas", "edit", "acme")
    await plane.stored_events("name=quota.changed")
    out = await output(plane, "quotas", "describe", "acme")
    for line in ("limit_bytes:", "256 MiB", "Conditions", "Accepted", "Usage of 7 days", "Events", "quota.changed"):
        assert line in out
    expiry = float(int(time.time()) + 86_400)
    await plane.put_pin("sys", expires_at=expiry)
    shown, later = (datetime.fromtimestamp(at, UTC).isoformat() for at in (expiry, expiry + 9))
    monkeypatch.setenv("EDITOR", f"sed -i s/.{shown}./{later}/")  # without quotes
    assert await output(plane, "pins", "edit", "sys") == "sys: pin changed\n"
    assert (await plane.get("/api/v1/pins/sys"))["expires_at"] == expiry + 9
    assert "Conditions" in await output(plane, "pins", "describe", "sys")


@pytest.mark.anyio
async def test_events_name_the_actor(plane: Plane, node: FakeNode) -> None:
    await plane.put_quota("acme", 1)
    await plane.stored_events("name=quota.created")
    out = await output(plane, "events", "list", "--name", "quota.created")
    assert re.search(r"quota\.created +local +- +tenant=acme", out)


@pytest.mark.anyio
async def test_a_command_exits_with_the_reason(socket_dir: Path) -> None:
    async with guarding(socket_dir) as plane:
        viewer = await create_token(plane, "reader")
        await refused(plane, 5, "quotas", "list")
        await refused(plane, 5, "quotas", "set", "acme", "1", token=viewer)
        await refused(plane, 4, "quotas", "get", "nobody", token=viewer)
        await refused(plane, 6, "quotas", "list", "--url", "http://127.0.0.1:9", token=viewer)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("larder quotas ", {"list", "get", "set"}),
        ("larder quotas s", {"set"}),
        ("larder audit --act", {"--actor", "--action"}),
        ("larder he", set()),
    ],
)
def test_a_shell_completes_commands_and_options_of_a_noun(alone: Path, words: str, found: set[str]) -> None:
    *args, incomplete = words.split(" ")
    completed = ShellComplete(root, {}, "larder", "_LARDER_COMPLETE").get_completions(args[1:], incomplete)
    assert {each.value for each in completed} >= found


@pytest.mark.anyio
async def test_a_shell_completes_names_that_the_server_knows(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    await plane.put_quota("acme", "1GiB")
    monkeypatch.setenv("LARDER_URL", str(plane.http.base_url))
    monkeypatch.setattr(names, "WAIT_S", 60.0)  # a busy machine takes longer than a shell waits
    complete = ShellComplete(root, {}, "larder", "_LARDER_COMPLETE").get_completions
    found = await asyncio.to_thread(complete, ["quotas", "get"], "ac")
    assert [each.value for each in found] == ["acme"]
    monkeypatch.setenv("LARDER_URL", "http://127.0.0.1:9")
    assert await asyncio.to_thread(complete, ["quotas", "get"], "ac") == []


def test_a_number_and_its_unit_stay_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    wrapped(f"{'x' * 74} 45.9 % of 12 GiB")
    assert capsys.readouterr().out.splitlines() == ["x" * 74, "  45.9 % of 12 GiB"]
