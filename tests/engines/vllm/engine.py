"""A real vLLM with Larder's connector, in a process of its own."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from benchmarks.peers.environment import CONNECTOR, QUIET, VLLM_RELEASES, python
from benchmarks.peers.line_process import LineProcess

SCRIPT = Path(__file__).parent / "scripts" / "serve.py"
REPOSITORY = Path(__file__).parents[3]
START_S = 300.0
ANSWER_S = 300.0
PATIENT = {"timeout_s": 30.0, "load_timeout_s": 60.0, "step_load_s": 1.0}
"""Settings of a connector whose look-ups and loads must not time out on a busy machine."""
VOCABULARY = 4096
RELEASE = os.environ.get("LARDER_TEST_VLLM", "")
"""Release of vLLM that all tests run, such as `0.27.1`; empty for the newest one that is built."""
LOADS_IN_STEP = RELEASE not in ("0.27.1", "0.28.0", "0.29.0")
"""Whether the connector loads hits inside steps of this release."""
BY_SOURCE = LOADS_IN_STEP and RELEASE not in ("0.30.0", "0.31.0")
"""Whether this release counts hits by where they were."""
PYTHON = python(VLLM_RELEASES[RELEASE] if RELEASE else CONNECTOR)
"""The Python interpreter of vLLM's environment; None if the environment is not built."""


def prompt(tokens: int, seed: int = 5) -> list[int]:
    """Return a prompt that depends on the seed alone."""
    chance = random.Random(seed)
    return [chance.randrange(3, VOCABULARY) for _ in range(tokens)]


class Engine(LineProcess):
    """The engine's process."""

    def __init__(
        self,
        folder: Path,
        socket: str | None,
        log: Path,
        *,
        role: str = "kv_both",
        children: list[dict[str, Any] | None] | None = None,
        environ: dict[str, str] | None = None,
        options: dict[str, Any] | None = None,
        program: Path | None = PYTHON,
        **connector: Any,
    ) -> None:
        """Start the process. `folder`: the folder of the model. `socket`: the engine socket of the data plane; None for
        an engine without a connector. `program`: the Python interpreter that has vLLM. `connector`: settings
        `larder.*`. `children`: the connectors of a MultiConnector; None stands for Larder's."""
        extra = {"socket": socket, "model": "tiny", **PATIENT, **connector}
        given = {
            "model": str(folder),
            "connector": None if socket is None else {f"larder.{name}": value for name, value in extra.items()},
            "transfer": {"role": role, **({} if children is None else {"children": children})},
            "options": options or {},
        }
        own = {name: value for name, value in os.environ.items() if not name.startswith(("LARDER_", "PYTEST_"))}
        environ = {**own, **QUIET, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(log.parent), **(environ or {})}
        super().__init__([str(program), str(SCRIPT), json.dumps(given)], environ, log, ANSWER_S)

    def ready(self) -> Self:
        """Wait until the model is loaded."""
        assert self.answer(START_S) == {"ready": True}
        return self

    def generate(self, tokens: list[int], salt: str = "", new: int = 8, **fields: Any) -> dict[str, Any]:
        """Run one request; the answer has `cached`, `tokens`, `finish`, `transfer_params`, `seconds`."""
        answer = self.do("generate", prompts=[{"tokens": tokens, "salt": salt, "new": new, **fields}])
        return {**answer["outputs"][0], "seconds": answer["seconds"]}

    def forget(self) -> None:
        """Empty the engine's own prefix cache, so that cached tokens come from Larder."""
        assert self.do("forget")["done"]

    def close(self) -> None:
        super().close()
        for name in set(re.findall(r"vllm_dist_[0-9a-f]+", self.log.read_text(errors="replace"))):
            for segment in Path("/dev/shm").glob(f"{name}-*"):  # vLLM's ranks leave it there
                segment.unlink(missing_ok=True)


MakeEngine = Callable[..., Engine]
