"""Machines of a fleet on one machine: a network namespace for each, and a cable (veth) to it that can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field

from tests.require import require


def require_namespaces() -> None:
    """Skip on a laptop, fail in CI, where namespaces cannot be made."""
    require(shutil.which("ip"), "the command ip is not installed (Debian: apt install iproute2)")
    require(os.geteuid() == 0, "network namespaces need root")
    probe = f"larder-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode == 0:
        subprocess.run(["ip", "netns", "del", probe], check=True)
    require(made.returncode == 0, f"network namespaces cannot be made here: {made.stderr.strip()}")


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


@dataclass
class Machine:
    """A namespace with one cable to the test's own; number it from 0 to 63."""

    number: int
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"larder-{os.getpid()}-{self.number}"
        self._cable = f"lt{os.getpid() % 100_000}x{self.number}"

    @property
    def near(self) -> str:
        """Our address, as this machine sees it."""
        return f"198.18.{os.getpid() % 250}.{4 * self.number + 1}"

    @property
    def far(self) -> str:
        return f"198.18.{os.getpid() % 250}.{4 * self.number + 2}"

    def make(self) -> None:
        ip("netns", "add", self.name)
        ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("addr", "add", f"{self.near}/30", "dev", self._cable)
        ip("link", "set", self._cable, "up")
        ip("-n", self.name, "addr", "add", f"{self.far}/30", "dev", "eth0")
        ip("-n", self.name, "link", "set", "eth0", "up")
        ip("-n", self.name, "link", "set", "lo", "up")

    def cut(self) -> None:
        ip("link", "set", self._cable, "down")

    def heal(self) -> None:
        ip("link", "set", self._cable, "up")

    def remove(self) -> None:
        for arguments in (("link", "del", self._cable), ("netns", "del", self.name)):
            subprocess.run(["ip", *arguments], capture_output=True, check=False)

    def command(self, *arguments: str) -> list[str]:
        """Run something on this machine."""
        return ["ip", "netns", "exec", self.name, *arguments]
