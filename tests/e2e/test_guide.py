"""The commands in docs/api.md are run as they stand, and answer what is shown."""

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.larder import Larder, keys, running, store, until

pytestmark = [pytest.mark.slow]
GUIDE = Path(__file__).parents[2] / "docs" / "api.md"
END = "=end-of-a-command="
STATUS = "=answered="


@dataclass
class Command:
    """A line behind `$`, with those that continue it, and what stands below."""

    text: str
    shown: list[str] = field(default_factory=list)

    @property
    def expected_status(self) -> int:
        """Of the refusal that is shown; 0 when none is."""
        found = re.search(r'"status":(\d+)', "".join(self.shown))
        return int(found[1]) if found else 0

    def is_shown(self, output: str) -> bool:
        """Whether the output is what stands below; `…` there stands for anything."""
        parts = [re.escape("".join(part.split())) for part in "".join(self.shown).split("…")]
        return re.fullmatch(".*".join(parts), "".join(output.split())) is not None


def commands(text: str) -> list[Command]:
    found: list[Command] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:]))
            elif found and found[-1].text.endswith("\\"):
                found[-1].text += f"\n{line}"
            elif line and not line.startswith("#"):
                found[-1].shown.append(line)
    return found


@pytest.fixture
def larder(socket_dir: Path) -> Iterator[Larder]:
    with running(socket_dir, LARDER_POOL_BYTES="1GiB") as one:
        yield one


def test_every_command_of_the_guide_does_what_it_shows(larder: Larder, tmp_path: Path) -> None:
    told = commands(GUIDE.read_text())
    assert len(told) > 30
    with larder.engine() as engine:
        chain = keys("wild", 4)
        store(engine, chain, tenant="wild")
        for _ in range(20):
            with engine.acquire(chain, tenant="wild") as lease:
                assert len(lease) == 4
        until(
            lambda: larder.tenant("wild")["blocks"] and larder.get("prefixes")["items"],
            "what engines brought",
        )
        outputs = run(larder, [command.text for command in told], tmp_path)
    for command, (output, statuses) in zip(told, outputs, strict=True):
        if command.shown:
            assert command.is_shown(output), f"{command.text}\n{output}"
        expected = command.expected_status
        assert all(status == expected if expected else status < 400 for status in statuses), (
            f"{command.text}\n{output}"
        )


def run(larder: Larder, texts: list[str], folder: Path) -> list[tuple[str, list[int]]]:
    """In one shell, one after the other: what each printed, and the statuses that it was answered."""
    script = [
        f"curl() {{ command curl --no-progress-meter --noproxy '*' -w '%{{stderr}}{STATUS}%{{http_code}}\\n' \"$@\"; }}"
    ]
    for text in texts:
        script += [
            text.replace("127.0.0.1:8470", f"127.0.0.1:{larder.port}"),
            f"echo {END} | tee /dev/stderr",
        ]
    environ = {**os.environ, "LARDER_URL": larder.url}
    ended = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    printed, said = ended.stdout.split(f"{END}\n"), ended.stderr.split(f"{END}\n")
    assert len(printed) == len(said) == len(texts) + 1, ended.stderr
    statuses = [[int(found) for found in re.findall(rf"{STATUS}(\d+)", part)] for part in said]
    return list(zip(printed, statuses, strict=True))[:-1]
