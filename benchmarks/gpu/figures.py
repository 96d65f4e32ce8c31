"""All figures of a GPU, in one run. `--emulated` measures the emulated device: it shows that everything runs, and its
figures are those of this machine's memory, of no GPU."""

from benchmarks.gpu import costs, gpu_copies, layers, paged_copies
from benchmarks.gpu.device import runtime_of
from benchmarks.harness.result import Result
from benchmarks.harness.setting import Setting


def run(setting: Setting) -> list[Result]:
    """All of them. RuntimeError without a GPU."""
    runtime = runtime_of(emulated=setting.emulated)
    device = runtime.devices()[0]
    setting.device = device.name if runtime.name == "cuda" else "none: the emulated device, on host memory"
    return [
        result for part in (costs, paged_copies, layers, gpu_copies) for result in part.run(setting, runtime, device)
    ]
