"""What people give the command line by mistake: the wrong file, something nested without end, half a URL."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app.cli import larder
from app.cli.commands.usage.usage import _share
from app.cli.support.keys import seconds as typed
from app.cli.support.printing import show

PIN = ("pins", "set", "prompt", "--model", "m")
NESTED = "[" * 5000


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what this user keeps; nothing listens at the URL."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("LARDER_URL", "http://127.0.0.1:9")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(larder, list(arguments), catch_exceptions=False)


@pytest.mark.parametrize("option", ["--tokens-file", "--keys-file", "--messages", "--text-file"])
def test_a_binary_file_is_refused_by_its_option(tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_bytes(b"\x80\x81\xfe" * 100)
    refused = run(*PIN, option, "file")
    assert (refused.exit_code, f"{option}: expected text in UTF-8" in refused.output) == (2, True)


@pytest.mark.parametrize("option", ["--tokens-file", "--keys-file", "--messages"])
@pytest.mark.parametrize("content", ["hunter2 other", "[hunter2", NESTED, '{"hunter2": 1}', "9" * 5000])
def test_a_file_of_something_else_is_refused_and_not_shown(tmp_path: Path, option: str, content: str) -> None:
    (tmp_path / "file").write_text(content)
    refused = run(*PIN, option, "file")
    assert (refused.exit_code, f"{option}: expected" in refused.output) == (2, True)
    for never in ("hunter2", "9" * 100, "set_int_max_str_digits", "int()"):
        assert never not in refused.output


@pytest.mark.parametrize("tokens", [NESTED, "1,2,x", "9" * 5000, f"[{'9' * 5000}]", "1.5", "[1"])
def test_invalid_tokens_are_refused_in_one_sentence(tokens: str) -> None:
    refused = run(*PIN, "--tokens", tokens)
    assert (refused.exit_code, "--tokens: expected" in refused.output) == (2, True)


@pytest.mark.parametrize(
    "url",
    ["http://[::", f"http://{'a' * 300}:1", "http://xn--:1/", "http://127.0.0.1:99999", "ftp://x", "larder",
     "http://127.0.0.1:0", "http://..", "http://127.0.0.1:x", "http://127.0.0.1:1/?x=1", "http://127.0.0.1:1/larder#x", "http://127.0.0.1:1?"],
)  # fmt: skip
@pytest.mark.parametrize("command", [("whoami",), ("logout",), ("events",), ("login", "--setup", "x")])
def test_an_invalid_url_is_refused_before_anything_is_sent(url: str, command: tuple[str, ...]) -> None:
    refused = run(*command, "--url", url)
    assert (refused.exit_code, "expected a URL such as" in refused.output) == (2, True), refused.output


def test_served_tokens_may_exceed_requested_tokens() -> None:
    """If engines acquired the blocks of one look-up several times."""
    assert _share(300, 100) == "300.0 %"
    assert _share(0, 0) == "-"


@pytest.mark.parametrize(
    ("seconds", "text"), [(604_800, "7d"), (3600, "1h"), (5400, "90m"), (45, "45s"), (1.5, "1.5s"), (0, "0s")]
)
def test_a_time_is_shown_as_it_is_typed(seconds: float, text: str) -> None:
    assert show.span(seconds) == text
    assert typed("--ttl", text) == seconds


@pytest.mark.parametrize("content", [b"hello\n", b"\x80\x81", b"[1]\n{}\n", b'{"id": 1}\n'])
def test_a_file_that_is_not_an_export_is_not_reported_as_an_altered_log(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    refused = run("audit", "verify", "--file", "file")
    assert (refused.exit_code, "file is not an export of the audit log" in refused.output) == (1, True)
