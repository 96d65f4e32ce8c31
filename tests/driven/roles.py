"""Other processes of the tests: `python -m tests.driven.roles ROLE ARGUMENTS`. They answer each JSON line with one."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from hashlib import sha256
from typing import Any

from dataplane.devices.runtime import DeviceError, DeviceRuntime
from tests.driven.engines import Engine, done, make
from tests.gpu.machines import Machine
from tests.gpu.role_parts import in_children, run_plane, serve

DYING = {"page_bytes": 64 << 10, "blocks": 80}
STORED = list(range(64))
LONGEST_LIFE_S = 0.004
"""After it asked for a copy, which takes about a millisecond."""


def dying_keys(number: int) -> list[bytes]:
    """Return the keys that dead engine `number` stores."""
    return [sha256(f"dead {number} {at}".encode()).digest() for at in range(len(STORED) // 16)]


class PlanesTurn:
    """Commands to a data plane that runs."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.reached = threading.Event()

    def stop_after(self, nbytes: int) -> None:
        """Its streams stop after so many bytes."""
        self.reached = self.machine.emulator.pace.stop_after(nbytes)

    def resume_for(self, nbytes: int) -> None:
        """Its streams go on, and stop again after so many bytes."""
        self.reached = self.machine.emulator.pace.resume_for(nbytes)

    def stopped(self) -> dict[str, Any]:
        """When they did."""
        return {"stopped": self.reached.wait(60)}

    def resume(self) -> None:
        self.machine.emulator.pace.resume()

    def fail(self, operation: str, name: str = "cudaErrorInvalidValue", after: int = 0) -> None:
        self.machine.emulator.fail(operation, name, after=after)


def plane(machine: Machine, arguments: dict[str, Any]) -> None:
    """A data plane that has the machine's devices, or none, and a holder if there is to be one."""

    def found() -> DeviceRuntime:
        if arguments.get("no_devices"):
            raise DeviceError("load CUDA", "no module cuda")
        return machine.runtime

    def beside() -> None:
        threading.Thread(target=lambda: serve(PlanesTurn(machine)), daemon=True).start()

    run_plane(arguments["environ"], found, beside, has_holder=bool(arguments.get("holder")))


class EnginesTurn:
    """Commands to an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def fill(self, seed: int) -> None:
        self.engine.fill(seed)

    def blocks(self, numbers: list[int]) -> dict[str, Any]:
        return {"digest": self.engine.digest(numbers)}

    def register(self) -> dict[str, Any]:
        code = self.engine.register()
        return {"code": None if code is None else code.name}

    def begin_store(self, keys: list[str], blocks: list[int]) -> dict[str, Any]:
        copy = self.engine.client.store_from([bytes.fromhex(each) for each in keys], blocks)
        return {"outcomes": copy.outcomes.tolist()}

    def store(self, keys: list[str], blocks: list[int]) -> dict[str, Any]:
        copy = done(self.engine.client.store_from([bytes.fromhex(each) for each in keys], blocks))
        assert copy.ended is not None
        return {"blocks": copy.ended.blocks}

    def load(self, keys: list[str], blocks: list[int]) -> dict[str, Any]:
        copy = done(self.engine.client.load_into([bytes.fromhex(each) for each in keys], blocks))
        assert copy.ended is not None
        return {"blocks": copy.ended.blocks, "hits": copy.hits}


def engine(machine: Machine, arguments: dict[str, Any]) -> None:
    """Runs the command of that name."""
    serve(EnginesTurn(make(machine, arguments["socket"], arguments)))


def short_lived_engines(arguments: dict[str, Any]) -> None:
    """Each registers, stores and is killed."""

    def live(machine: Machine, number: int) -> None:
        one = make(machine, arguments["socket"], {"page_bytes": 4096})
        assert one.register() is None
        copy = done(one.client.store_from([number.to_bytes(32, "little")], list(range(16))))
        assert copy.ended is not None
        assert copy.ended.code is None

    in_children(arguments, live)


def dying_engines(arguments: dict[str, Any]) -> None:
    """Start engines that kill themselves during a store, or during the load of the chunks that they stored."""

    def live(machine: Machine, number: int) -> None:
        one = make(machine, arguments["socket"], DYING)
        assert one.register() is None
        one.fill(number)
        keys = dying_keys(number)
        copy = one.client.store_from(keys, STORED)
        if number % 2:
            done(copy)
            one.client.load_into(keys, STORED)
        time.sleep(random.Random(number).uniform(0, LONGEST_LIFE_S))

    in_children(arguments, live)


def main(role: str, arguments: dict[str, Any]) -> None:
    parents = {"short_lived_engines": short_lived_engines, "dying_engines": dying_engines}
    if role in parents:
        parents[role](arguments)
        return
    machine = Machine(arguments["kind"], arguments["uuid"])
    {"engine": engine, "plane": plane}[role](machine, arguments)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
