"""Machines of a fleet on one machine: a network namespace for each, and a cable (veth) to it that can be cut.

Several runs may share a machine: each takes a slot of its own, with names and addresses of its own, and what
a run that was killed left in its slot is removed by the next one that takes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.require import require

SLOTS = 256
LOCKS = Path("/tmp/larder-test-networks")
MACHINES = 64


def require_namespaces() -> None:
    """Skip on a laptop, fail in CI, where namespaces cannot be made."""
    require(shutil.which("ip"), "the command ip is not installed (Debian: apt install iproute2)")
    require(os.geteuid() == 0, "network namespaces need root")
    probe = f"larder-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode == 0:
        subprocess.run(["ip", "netns", "del", probe], check=True)
    require(made.returncode == 0, f"network namespaces cannot be made here: {made.stderr.strip()}")


def ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


class Network:
    """A slot: addresses 198.18.SLOT.* (set apart for tests by RFC 2544), and names that hold its number. It is this
    run's until `close`, or until the process ends, however it ends."""

    def __init__(self) -> None:
        LOCKS.mkdir(exist_ok=True)
        for self.slot in range(SLOTS):
            self._lock = (LOCKS / str(self.slot)).open("a")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
                continue
            self._clean()
            if f" 198.18.{self.slot}." not in ip("-o", "addr", "show"):
                break
            self._lock.close()  # another program uses these addresses
        else:
            raise AssertionError(f"all {SLOTS} slots of {LOCKS} are taken")
        self.machines: list[Machine] = []

    def machine(self) -> Machine:
        """Another machine, connected."""
        assert len(self.machines) < MACHINES
        machine = Machine(self.slot, len(self.machines))
        self.machines.append(machine)
        machine.make()
        return machine

    def _clean(self) -> None:
        for line in ip("netns", "list").splitlines():
            if line.startswith(f"larder-{self.slot}-"):
                ip("netns", "del", line.split()[0])  # and with it the cable
        for line in ip("-o", "link", "show").splitlines():
            name = line.split(": ")[1].partition("@")[0]
            if name.startswith(f"lt{self.slot}x"):
                subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)

    def close(self) -> None:
        for machine in self.machines:
            machine.remove()
        self._lock.close()


@dataclass
class Machine:
    """A namespace with one cable to the test's own."""

    slot: int
    number: int
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"larder-{self.slot}-{self.number}"
        self._cable = f"lt{self.slot}x{self.number}"

    @property
    def near(self) -> str:
        """Our address, as this machine sees it."""
        return f"198.18.{self.slot}.{4 * self.number + 1}"

    @property
    def far(self) -> str:
        return f"198.18.{self.slot}.{4 * self.number + 2}"

    def make(self) -> None:
        ip("netns", "add", self.name)
        ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("addr", "add", f"{self.near}/30", "dev", self._cable)
        ip("link", "set", self._cable, "up")
        ip("-n", self.name, "addr", "add", f"{self.far}/30", "dev", "eth0")
        ip("-n", self.name, "link", "set", "eth0", "up")
        ip("-n", self.name, "link", "set", "lo", "up")

    def cut(self, side: str = "near") -> None:
        """Pull the cable: the near side reports at once that there is no route, at the far side packets are lost
        without a word."""
        ip(*(("link", "set", self._cable) if side == "near" else ("-n", self.name, "link", "set", "eth0")), "down")

    def heal(self) -> None:
        ip("link", "set", self._cable, "up")
        ip("-n", self.name, "link", "set", "eth0", "up")

    def remove(self) -> None:
        for arguments in (("link", "del", self._cable), ("netns", "del", self.name)):
            subprocess.run(["ip", *arguments], capture_output=True, check=False)

    @property
    def namespace(self) -> str:
        """File of the namespace."""
        return f"/run/netns/{self.name}"
