"""Standard streams as shells and terminals make them: closed, full, and not UTF-8."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.environ import clean_environ

COMMANDS = {
    "larder openapi": ("app", "openapi"),
    "larder --help": ("app", "--help"),
    "larder up --print-config": ("app", "up", "--print-config"),
    "larder completion": ("app", "completion", "bash"),
    "larder dataplane": ("dataplane", "--print-config"),
    "larder replay": ("dataplane.replay", "--help"),
    "larder demo": ("app.demo", "--help"),
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


UNWRITABLE = ": the output cannot be written: {}\n"


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_output_that_cannot_be_written_is_one_line_and_code_1(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = forked.run(*arguments, env=clean_environ(LARDER_STATE_DIR=str(tmp_path)), stdout=full)
    sentence = UNWRITABLE.format("No space left on device")
    assert (done.returncode, done.stderr.count("\n"), done.stderr.endswith(sentence)) == (1, 1, True)


@pytest.mark.parametrize("name", ["larder --help", "larder dataplane", "larder replay", "larder demo"])
def test_a_closed_output_is_one_line_and_code_1(name: str, tmp_path: Path) -> None:
    """By each program; the commands of a program write by the same way."""
    code, _, errors = shell(">&-", ("-m", *COMMANDS[name]), tmp_path)
    assert (code, errors.count("\n"), errors.endswith(UNWRITABLE.format("Bad file descriptor"))) == (1, 1, True)


@pytest.mark.full
@pytest.mark.parametrize("redirection", ["| true", "2>/dev/full | true", "2>&- | true"])
def test_a_reader_of_a_long_output_that_has_exited_is_no_error(redirection: str, tmp_path: Path) -> None:
    assert shell(redirection, ("-m", *COMMANDS["larder openapi"]), tmp_path)[1:] == ("", "")


def test_closed_streams_are_no_error(tmp_path: Path) -> None:
    assert shell("<&- >&- 2>&-", ("-m", *COMMANDS["larder --help"]), tmp_path)[1:] == ("", "")


def test_a_reader_that_has_exited_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = forked.run(*COMMANDS["larder openapi"], env=clean_environ(LARDER_STATE_DIR=str(tmp_path)), stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&- 2>&-"])
def test_the_exit_code_stays_where_errors_cannot_be_written(redirection: str, tmp_path: Path) -> None:
    code, out, errors = shell(redirection, ("-m", "app", "quota", "get", "x"), tmp_path)
    assert (code in (1, 6), out, errors) == (True, "", "")


@pytest.mark.parametrize("environ", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_a_terminal_that_is_not_utf_8_shows_escapes(environ: dict[str, str], tmp_path: Path) -> None:
    code = (
        "from app.cli import larder\n"
        "from dataplane.base import entry_point\n"
        "import sys\n"
        "for name in sys.argv[1:]:\n"
        "    for words in (('context', 'use'), ('quota', 'get'), ('db', 'check'), ('size',)):\n"
        "        try:\n"
        "            entry_point.run(lambda: larder.main((*words, name), prog_name='larder'), 'larder')\n"
        "        except SystemExit as end:\n"
        "            assert end.code\n"
    )
    status, _, errors = shell("", ("-c", code, "ü€", "\udcff"), tmp_path, **environ)
    assert (status, "Traceback" in errors) == (0, False), errors
    assert errors.count("Error: ") == 8


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


def test_no_proxy_is_used_on_loopback(tmp_path: Path) -> None:
    code = (
        "from dataplane.base import entry_point\n"
        "import os\n"
        "from urllib.request import getproxies, proxy_bypass\n"
        "from requests.utils import should_bypass_proxies\n"
        "hosts = ('localhost', '127.0.0.1', '::1')\n"
        "urls = [f'http://{host}:1/' for host in (*hosts[:2], '127.1.2.3', '[::1]')]\n"
        "for given in ('', 'internal.example', '*', 'localhost,127.0.0.1'):\n"
        "    for name in ('NO_PROXY', 'no_proxy'):\n"
        "        os.environ.pop(name, None)\n"
        "    if given:\n"
        "        os.environ['NO_PROXY'] = given\n"
        "    entry_point.prepare()\n"
        "    assert getproxies()['http'] == 'http://127.0.0.1:9'\n"
        "    assert all(proxy_bypass(host) for host in hosts), os.environ\n"
        "    assert all(should_bypass_proxies(url, None) for url in urls)\n"
        "    assert bool(proxy_bypass('s3.example')) == (given == '*')\n"
        "    assert bool(proxy_bypass('internal.example')) == (given in ('*', 'internal.example'))\n"
    )
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy"), "http://127.0.0.1:9")
    assert shell("", ("-c", code), tmp_path, **proxies) == (0, "", "")
