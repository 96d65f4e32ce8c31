"""What goes to NVIDIA's driver, seen by a library of the same signatures that copies host memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from dataplane.client import Space, attach
from dataplane.client.gpu import PagedCache
from dataplane.devices import cuda_driver
from dataplane.devices.cuda_driver import Driver, runtime_name
from dataplane.devices.errors import ADVICE, LASTING, advice_for
from dataplane.devices.page_kernel import NAME, PTX, TEAM_THREADS
from dataplane.devices.runtime import DeviceError

STREAM = 0x77
NEW, OLD = 13_000, 12_080
_ARRAYS: list[Any] = [ctypes.POINTER(ctypes.c_uint64)] * 3
_REST: list[Any] = [ctypes.POINTER(cuda_driver._Attributes), ctypes.POINTER(ctypes.c_size_t), ctypes.c_size_t]


class Library:
    """`libcuda.so.1`, as far as it is used. `version` is that of its cuMemcpyBatchAsync; 0: it has none."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.calls: list[str] = []
        index: list[Any] = [ctypes.POINTER(ctypes.c_size_t)] if version == OLD else []
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *_ARRAYS, ctypes.c_size_t, *_REST, *index, ctypes.c_void_p)
        self._batch = kind(self._copy_batch)
        self.cuMemcpyAsync = Call(self._copy)

        self.cuModuleLoadData = self._load
        self.cuModuleGetFunction = self._function
        self.cuModuleUnload = self._unload
        self.cuLaunchKernel = self._launch
        self.launched: list[int] = []

    def _load(self, module: Any, image: bytes) -> int:
        module._obj.value = 0x1000
        return 0 if image.startswith(b".version") else 400

    def _function(self, function: Any, module: Any, name: bytes) -> int:
        assert (module.value, name) == (0x1000, b"copy_pages")
        function._obj.value = 0x2000
        return 0

    def _unload(self, module: Any) -> int:
        self.calls.append(f"unload {module.value:#x}")
        return 0

    def _launch(self, function: Any, *arguments: Any) -> int:
        *sizes, stream, given, extra = arguments
        assert (function.value, stream.value, extra) == (0x2000, STREAM, None)
        assert [each.value for each in sizes] == [8, 1, 1, 256, 1, 1, 0]
        for at, kind in enumerate((ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32)):
            self.launched.append(kind.from_address(given[at]).value)
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self.version + 20 if self.version else 12_060
        return 0

    def cuGetProcAddress_v2(self, name: bytes, pointer: Any, version: Any, flags: Any, status: Any) -> int:
        assert (name, version.value) == (b"cuMemcpyBatchAsync", self.version)
        pointer._obj.value = ctypes.cast(self._batch, ctypes.c_void_p).value
        return 0

    def cuGetErrorName(self, code: int, text: Any) -> int:
        text._obj.value = {400: b"CUDA_ERROR_INVALID_HANDLE", 700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}[code]
        return 0

    def _copy_batch(self, targets: Any, sources: Any, sizes: Any, count: int, *rest: Any) -> int:
        attributes, first, attribute_count, *index, stream = rest
        assert (attributes[0].source_order, attributes[0].flags) == (1, 1)
        assert (first[0], attribute_count, len(index)) == (0, 1, self.version == OLD)
        self.calls.append("batch")
        if stream != STREAM:
            return 400
        for at in range(count):
            ctypes.memmove(targets[at], sources[at], sizes[at])
        return 0

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> int:
        self.calls.append("copy")
        if stream != STREAM:
            return 700
        ctypes.memmove(target, source, nbytes)
        return 0


class Call:
    """A function whose `argtypes` are set."""

    argtypes: Any = ()

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *arguments: int) -> int:
        assert len(arguments) == len(self.argtypes)
        return self._function(*arguments)


@pytest.fixture
def make_driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    def new(version: int) -> tuple[Driver, Library]:
        library = Library(version)
        monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
        return Driver(), library

    return new


@pytest.mark.parametrize(("version", "calls"), [(NEW, ["batch"]), (OLD, ["batch"]), (0, ["copy"] * 50)])
def test_many_pieces_go_as_one_batch_where_the_driver_has_one(make_driver: Any, version: int, calls: list[str]) -> None:
    driver, library = make_driver(version)
    assert driver.batches == bool(version)
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, 256, (50, 96), np.uint8), np.zeros((50, 96), np.uint8)
    order = rng.permutation(50)
    starts = np.arange(50, dtype=np.int64) * 96
    driver.copy_batch(target.ctypes.data + order * 96, source.ctypes.data + starts, np.full(50, 96, np.int64), STREAM)
    assert np.array_equal(target[order], source)
    assert library.calls == calls


def test_the_driver_s_errors_have_the_runtime_s_names(make_driver: Any) -> None:
    driver, _ = make_driver(NEW)
    one = np.zeros(1, np.int64)
    with pytest.raises(DeviceError, match="cudaErrorInvalidHandle") as refused:
        driver.copy_batch(one, one, one, 1)
    assert not refused.value.lasting
    with pytest.raises(DeviceError, match="restart the process") as broken:
        driver.copy(0, 0, 0, 1)
    assert broken.value.lasting
    assert runtime_name("CUDA_ERROR_OUT_OF_MEMORY") == "cudaErrorMemoryAllocation"
    for name in ("CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_MISALIGNED_ADDRESS"):
        assert runtime_name(name) in LASTING


def test_a_kernel_is_loaded_launched_and_unloaded(make_driver: Any) -> None:
    driver, library = make_driver(NEW)
    module, function = driver.load(PTX, NAME)
    assert (module, function) == (0x1000, 0x2000)
    given = [ctypes.c_uint64(1 << 40), ctypes.c_uint64(7), ctypes.c_uint32(3), ctypes.c_uint32(1 << 31)]
    driver.launch(function, 8, TEAM_THREADS, given, STREAM)
    assert library.launched == [1 << 40, 7, 3, 1 << 31]
    driver.unload(module)
    assert library.calls == ["unload 0x1000"]
    with pytest.raises(DeviceError, match="load a kernel"):
        driver.load("nonsense", NAME)


def test_a_machine_without_a_driver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(DeviceError, match=r"libcuda\.so\.1"):
        Driver()


def test_every_permanent_error_advises_a_restart() -> None:
    for name in LASTING:
        assert "restart" in advice_for(name)
    assert advice_for("cudaErrorOfTomorrow") == ""
    assert all(text and not text.endswith(".") for text in ADVICE.values())


def test_tensors_of_the_processor_are_refused(tmp_path: Any) -> None:
    import torch

    client = attach(tmp_path / "nobody.sock", [Space(model="gpu", block_bytes=4096)])
    with pytest.raises(ValueError, match="one CUDA device, got \\['cpu'\\]"):
        PagedCache.of_tensors(client, [torch.zeros(2, 4, 16, 2, 8)], tokens_per_block=16)
    client.close()
