"""vLLM engines on CPU, alive at the same time, and the servers that some of them store prefixes in.

All have the same small model without weights. Each connector has a server of its own with the same pool, and default
settings; chunks have 256 tokens. Larder's is a data plane without a management plane, which does nothing for a request.
An engine keeps 6,144 tokens by itself.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Self

from benchmarks.peers import environment, servers
from benchmarks.peers.line_process import LineProcess
from benchmarks.peers.vllm_model import write_model
from dataplane.replay.plane import PlaneError, own

BARE, OFFLOADING, LMCACHE, GATEWAY, LARDER, BESIDE = "vllm", "offloading", "lmcache", "gateway", "larder", "beside"
TITLES = {
    BARE: "vLLM alone",
    OFFLOADING: "vLLM's own offloading",
    LMCACHE: "LMCache's connector and server",
    GATEWAY: "LMCache's connector on Larder",
    LARDER: "Larder's connector",
    BESIDE: "Larder's, no load inside a step",
}
MAX_TOKENS = 4096
BLOCKS = 48
"""Number of blocks of 128 tokens that an engine's own cache has."""
SHAPE = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
"""Of the model on processors with AVX-512. On others, the model is that of `vllm_model`, which computes an eighth."""
START_S = 180.0
ANSWER_S = 300.0
REPOSITORY = Path(__file__).parents[2]
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
"""Settings of glibc, so that an engine keeps the memory of activations. Otherwise it may return memory to the kernel in
each step and fault it in again. Whether it does so depends on what lies at the end of its heap, and differs from
process to process by tens of thousands of page faults for each batch."""


def has_avx512() -> bool:
    """Return whether the processor has AVX-512. Without it, vLLM computes bfloat16 without vectors."""
    return "avx512f" in Path("/proc/cpuinfo").read_text().split()


def dtype() -> str:
    """Return the type of the model."""
    return "bfloat16" if has_avx512() else "float32"


class Engine(LineProcess):
    """A process of `serve`, which may work while this process does something else."""

    def __init__(self, model: Path, transfer: dict[str, Any] | None, log: Path) -> None:
        """Start the process. Raise RuntimeError if vLLM is not built."""
        python = environment.python(environment.CONNECTOR)
        if python is None:
            raise RuntimeError("vLLM is not built: run `make engines`")
        options = {
            "model": str(model),
            "load_format": "dummy",
            "dtype": dtype(),
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "seed": 0,
            "max_model_len": MAX_TOKENS,
            "num_gpu_blocks_override": BLOCKS,
            "transfer": transfer and {"kv_role": "kv_both", **transfer},
        }
        environ = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
        folder = str(log.parent)
        environ |= (
            environment.QUIET
            | KEEP_MEMORY
            | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
        )
        command = [str(python), "-m", "benchmarks.engines.serve", json.dumps(options)]
        super().__init__(command, environ, log, ANSWER_S)

    def ready(self) -> Self:
        """Wait until the model is loaded. Raise RuntimeError if it does not start."""
        self.answer(START_S)
        return self


class Lineup:
    """The running engines by name, and the errors of the others."""

    def __init__(self) -> None:
        self.engines: dict[str, Engine] = {}
        self.failed: dict[str, str] = {}
        self._turn = 0

    def each(self, action: Callable[[Engine], Any], without: Collection[str] = ()) -> dict[str, Any]:
        """Call `action` with every engine that is not in `without`, in an order that rotates, and return its results by
        name. An engine that fails takes no further part. Raise RuntimeError if there is none left."""
        if not self.engines:
            raise RuntimeError("; ".join(f"{TITLES[name]}: {error}" for name, error in self.failed.items()))
        turn_names = [name for name in self.engines if name not in without]
        first = self._turn % max(1, len(turn_names))
        self._turn += 1
        results = {}
        for name in turn_names[first:] + turn_names[:first]:
            try:
                results[name] = action(self.engines[name])
            except RuntimeError as error:
                self.drop(name, error)
        return {name: results[name] for name in turn_names if name in results}

    def drop(self, name: str, error: Exception) -> None:
        """Record the error of an engine and leave it out from now on."""
        self.engines.pop(name, None)
        self.failed[name] = f"{error}".splitlines()[0]


@contextmanager
def lineup(
    folder: Path, pool_bytes: int, names: Collection[str], progress: Callable[[str], None] = lambda line: None
) -> Iterator[Lineup]:
    """Start the engines of these names and their servers, one after another."""
    started = Lineup()
    with ExitStack() as stack:

        def lmcache(port: int) -> dict[str, Any]:
            extra = {"host": "tcp://127.0.0.1", "port": port, "mp_transfer_mode": "engine_driven"}
            return {
                "kv_connector": "LMCacheMPConnector",
                "kv_connector_extra_config": {f"lmcache.mp.{name}": value for name, value in extra.items()},
            }

        def larder(**settings: float) -> dict[str, Any]:
            plane = stack.enter_context(own(pool_bytes))
            return {
                "kv_connector": "LarderConnector",
                "kv_connector_module_path": "dataplane.engines.vllm.connector",
                "kv_connector_extra_config": {
                    "larder.socket": plane.engine_socket,
                    **{f"larder.{name}": value for name, value in settings.items()},
                },
            }

        transfers: dict[str, Callable[[], dict[str, Any] | None]] = {
            BARE: lambda: None,
            OFFLOADING: lambda: {
                "kv_connector": "OffloadingConnector",
                "kv_connector_extra_config": {"cpu_bytes_to_use": pool_bytes},
            },
            LMCACHE: lambda: lmcache(stack.enter_context(servers.lmcache(pool_bytes, "engine_driven")).rpc_port),
            GATEWAY: lambda: lmcache(stack.enter_context(servers.larder(pool_bytes)).rpc_port),
            LARDER: larder,
            BESIDE: lambda: larder(step_load_s=0.0),
        }
        model = write_model(folder, **(SHAPE if has_avx512() else {}))
        for name, transfer in transfers.items():
            if name not in names:
                continue
            progress(f"start {TITLES[name]} …")
            try:
                engine = Engine(model, transfer(), folder / f"{name}.log")
                started.engines[name] = stack.enter_context(closing(engine))
                engine.ready()
            except (RuntimeError, PlaneError) as error:
                started.drop(name, error)
        yield started
