"""Standard streams as shells and terminals make them: closed, full, and not UTF-8."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.environ import clean_environ

COMMANDS = {
    "larder openapi": ("-m", "app", "openapi"),
    "larder --help": ("-m", "app", "--help"),
    "larder up --print-config": ("-m", "app", "up", "--print-config"),
    "larder completion": ("-m", "app", "completion", "bash"),
    "larder dataplane": ("-m", "dataplane", "--print-config"),
    "larder replay": ("-m", "dataplane.replay", "--help"),
    "larder demo": ("-m", "app.demo", "--help"),
}


def shell(redirection: str, arguments: tuple[str, ...], folder: Path, **environ: str) -> tuple[int, str, str]:
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, *arguments],
        env=clean_environ(LARDER_STATE_DIR=str(folder), LARDER_URL="http://127.0.0.1:1", **environ),
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        # It makes the application, which takes seconds; the others write by the same way.
        pytest.param(arguments, id=name, marks=pytest.mark.full if name == "larder openapi" else ())
        for name, arguments in COMMANDS.items()
    ],
)
@pytest.mark.parametrize(
    ("redirection", "reason"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
def test_output_that_cannot_be_written_is_one_line_and_code_1(
    redirection: str, reason: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    code, _, errors = shell(redirection, arguments, tmp_path)
    assert (code, errors.count("\n"), errors.endswith(f": the output cannot be written: {reason}\n")) == (1, 1, True)


@pytest.mark.parametrize(
    "redirection",
    [
        *(pytest.param(each, marks=pytest.mark.full) for each in ("| true", "2>/dev/full | true")),
        "2>&- | true",
        "<&- >&- 2>&-",
    ],
)
def test_a_reader_that_has_exited_and_closed_streams_are_no_error(redirection: str, tmp_path: Path) -> None:
    assert shell(redirection, COMMANDS["larder openapi"], tmp_path)[1:] == ("", "")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&- 2>&-"])
def test_the_exit_code_stays_where_errors_cannot_be_written(redirection: str, tmp_path: Path) -> None:
    code, out, errors = shell(redirection, ("-m", "app", "quota", "get", "x"), tmp_path)
    assert (code in (1, 6), out, errors) == (True, "", "")


@pytest.mark.parametrize("environ", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
@pytest.mark.parametrize("name", ["ü€", "\udcff"])
def test_a_terminal_that_is_not_utf_8_shows_escapes(environ: dict[str, str], name: str, tmp_path: Path) -> None:
    for arguments in (("context", "use", name), ("quota", "get", name), ("db", "check", name), ("size", name)):
        _, _, errors = shell("", ("-m", "app", *arguments), tmp_path, **environ)
        assert "Traceback" not in errors, errors
        assert errors


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    code = (
        "from dataplane.base import entry_point\n"
        "import os, sys\n"
        "entry_point.prepare()\n"
        f"file = os.open({str(tmp_path / 'f')!r}, os.O_RDWR | os.O_CREAT)\n"
        "print('lost', file=sys.stderr, flush=True)\n"
        "sys.exit(0 if file > 2 and sys.stdin.read() == '' else 3)\n"
    )
    assert shell("<&- >&- 2>&-", ("-c", code), tmp_path) == (0, "", "")
    assert (tmp_path / "f").read_bytes() == b""


@pytest.mark.parametrize("given", ["", "internal.example", "*", "localhost,127.0.0.1"])
def test_no_proxy_is_used_on_loopback(given: str, tmp_path: Path) -> None:
    code = (
        "from dataplane.base import entry_point\n"
        "import os\n"
        "from urllib.request import getproxies, proxy_bypass\n"
        "from requests.utils import should_bypass_proxies\n"
        "entry_point.prepare()\n"
        "hosts = ('localhost', '127.0.0.1', '::1')\n"
        "assert getproxies()['http'] == 'http://127.0.0.1:9'\n"
        "assert all(proxy_bypass(host) for host in hosts), os.environ\n"
        "assert all(should_bypass_proxies(f'http://{host}:1/', None) for host in (*hosts[:2], '127.1.2.3', '[::1]'))\n"
        f"assert bool(proxy_bypass('s3.example')) == ({given!r} == '*')\n"
        f"assert bool(proxy_bypass('internal.example')) == ({given!r} in ('*', 'internal.example'))\n"
    )
    environ = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"} | (
        {"NO_PROXY": given} if given else {}
    )
    assert shell("", ("-c", code), tmp_path, **environ) == (0, "", "")
