"""The console, shell and Python blocks of the documentation are run as they stand, and print what is shown.

A block is not run if a comment stands directly above it: `<!-- not run: the reason -->`. A block below
`<!-- file: NAME -->` is written to that file first. Each page gets a new Larder, in which an engine of a tenant stored
and read a prefix of the model `llama`: `acme` for pages of CONTINUED, otherwise `wild`, which has no records.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import pytest

from tests.e2e.commands import larder_command
from tests.e2e.larder import Larder, keys, running, store, until
from tests.environ import clean_environ

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    if "decisions" not in path.parts and "Made by docs/generate.py" not in path.read_text(encoding="utf-8")
)
RUN = ("console", "sh", "bash", "shell", "python")
INSTALLED = "README.md"
"""The page that runs the installed command; the others run a command without its imports."""
FIRST = (INSTALLED, "docs/start/ten-minutes.md")
"""The pages that a newcomer follows: each page costs two seconds."""
CONTINUED = ("docs/operate/inspect.md", "docs/operate/hit-ratio.md", "docs/engines/routers.md")
"""The pages that use the tenant of docs/start/ten-minutes.md."""
END = "=end-of-a-command="
STATUS = "=answered="
CODE = "=exit-code="
_BLOCK = re.compile(
    r"(?:<!-- *(?P<mark>[^>]*?) *-->\n+)?^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass
class Command:
    """A command, and the output that the page shows for it."""

    text: str
    shown: list[str] = field(default_factory=list)

    @property
    def expected_status(self) -> int:
        """HTTP status of the refusal that is shown; 0 if none is."""
        found = re.search(r'"status":(\d+)', "".join(self.shown))
        return int(found[1]) if found else 0

    @property
    def may_fail(self) -> bool:
        return "# exit code" in self.text or any(line.startswith("Error:") for line in self.shown)

    def is_shown(self, output: str) -> bool:
        """Whether the output is the one that is shown; `…` there stands for anything."""
        parts = [re.escape("".join(part.split())) for part in "".join(self.shown).split("…")]
        return re.fullmatch(".*".join(parts), "".join(output.split())) is not None


@dataclass
class Page:
    commands: list[Command] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    unmarked: list[str] = field(default_factory=list)
    """Marks above blocks that are not understood."""


def page(text: str) -> Page:
    found = Page()
    for block in _BLOCK.finditer(text):
        mark, language, body = block["mark"] or "", block["language"], dedent(block["text"])
        if mark.startswith("file: "):
            found.commands.append(Command(f"cat > {mark[6:]} <<'END_OF_FILE'\n{body}END_OF_FILE"))
        elif language in RUN and mark.startswith("not run"):
            if len(mark.removeprefix("not run:").split()) < 2:
                found.unmarked.append(mark)
        elif language == "console":
            found.commands += commands(body)
        elif language == "python":
            found.commands.append(Command(f"python - <<'END_OF_FILE'\n{body}END_OF_FILE\n# python"))
        elif language in RUN:
            found.commands.append(Command(body.rstrip()))
    return found


def commands(block: str) -> list[Command]:
    """Lines behind `$`, with those that continue them, and the output below each."""
    found: list[Command] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:]))
        elif found and found[-1].text.endswith("\\"):
            found[-1].text += f"\n{line}"
        elif line and not line.startswith("#"):
            found[-1].shown.append(line)
    return found


READ = {str(path.relative_to(ROOT)): page(path.read_text(encoding="utf-8")) for path in PAGES}


@pytest.fixture
def larder(socket_dir: Path) -> Iterator[Larder]:
    with running(socket_dir, LARDER_POOL_BYTES="1GiB", LARDER_DATAPLANE__PREFAULT="false") as one:
        yield one


def test_a_block_that_is_not_run_has_a_reason() -> None:
    assert {name: page.unmarked for name, page in READ.items() if page.unmarked} == {}


def test_the_guides_have_commands() -> None:
    assert len(READ["docs/reference/api.md"].commands) > 30
    assert sum(bool(page.commands) for page in READ.values()) >= 10


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FIRST else pytest.mark.full)
        for name, page in READ.items()
        if page.commands
    ],
)
def test_every_command_of_a_page_prints_the_shown_output(larder: Larder, tmp_path: Path, name: str) -> None:
    commands = READ[name].commands
    tenant = "acme" if name in CONTINUED else "wild"
    with larder.engine() as engine:
        chain = keys(tenant, 4)
        store(engine, chain, tenant=tenant)
        for _ in range(20):
            with engine.acquire(chain, tenant=tenant) as lease:
                assert len(lease) == 4
        until(lambda: larder.tenant(tenant)["blocks"] and larder.get("prefixes")["items"], "what engines brought")
        installed = nullcontext(Path(sys.executable).parent)
        with installed if name == INSTALLED else larder_command(larder.folder) as programs:
            outputs = run(larder, [command.text for command in commands], tmp_path, programs)
    for command, (output, statuses, code) in zip(commands, outputs, strict=True):
        if command.shown:
            assert command.is_shown(output), f"{command.text}\n{output}"
        expected = command.expected_status
        assert all(status == expected if expected else status < 400 for status in statuses), f"{command.text}\n{output}"
        if "curl" not in command.text and not command.may_fail:
            assert code == 0, f"{command.text}\n{output}"


def run(larder: Larder, texts: list[str], folder: Path, programs: Path) -> list[tuple[str, list[int], int]]:
    """Run all in one shell, one after the other. Return the output, the HTTP statuses and the exit code of each.

    `programs` has the command `larder`.
    """
    script = [
        f"curl() {{ command curl --no-progress-meter --noproxy '*' -w '%{{stderr}}{STATUS}%{{http_code}}\\n' \"$@\"; }}"
    ]
    for text in texts:
        script += [
            text.replace("127.0.0.1:8470", f"127.0.0.1:{larder.port}"),
            f"{{ echo {CODE}$?; echo {END}; }} | tee /dev/stderr",
        ]
    environ = clean_environ(
        LARDER_URL=larder.url,
        LARDER_STATE_DIR=str(larder.folder),
        LARDER_HTTP_PORT=str(larder.port),
        LARDER_LMCACHE_PORT="0",
        HOME=str(folder),
        XDG_CONFIG_HOME=str(folder / "config"),
        PATH=f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        PYTHONPATH=str(ROOT),
    )
    ended = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    printed, printed_errors = ended.stdout.split(f"{END}\n"), ended.stderr.split(f"{END}\n")
    assert len(printed) == len(printed_errors) == len(texts) + 1, ended.stderr
    results = []
    for out, err in zip(printed[:-1], printed_errors[:-1], strict=True):
        code = int(re.findall(rf"{CODE}(\d+)", out)[-1])
        statuses = [int(found) for found in re.findall(rf"{STATUS}(\d+)", err)]
        errors = re.sub(rf"(?:{STATUS}|{CODE})\d+\n", "", err)
        results.append((re.sub(rf"{CODE}\d+\n", "", out) + errors, statuses, code))
    return results
