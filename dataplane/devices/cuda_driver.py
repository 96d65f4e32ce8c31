"""Calls of NVIDIA's driver library through ctypes, where the bindings are too slow or incomplete.

A page of 16 KiB takes a third of a microsecond on the wire, which is less than Python needs to convert one address.
Therefore batches are passed to the driver as arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataplane.devices.errors import LASTING, advice_for
from dataplane.devices.runtime import I64, DeviceError

_WITHOUT_FAILED_INDEX, _WITH_FAILED_INDEX = 13000, 12080
"""CUDA versions that changed cuMemcpyBatchAsync. Its first form also returned the index of the copy that failed."""
_VERSIONS = (_WITHOUT_FAILED_INDEX, _WITH_FAILED_INDEX)
_IN_STREAM_ORDER = 1
_BESIDE_COMPUTE = 1


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes."""

    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source_location", ctypes.c_int * 2),
        ("target_location", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


class Driver:
    """`libcuda.so.1` of this machine."""

    def __init__(self) -> None:
        """Load the library. Raise DeviceError."""
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DeviceError("load the driver", "libcuda.so.1", str(error)) from None
        self._copy = self._library.cuMemcpyAsync
        self._copy.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
        self._attributes = _Attributes(_IN_STREAM_ORDER, flags=_BESIDE_COMPUTE)
        self._batch, self._has_index = self._find_batch()

    @property
    def batches(self) -> bool:
        """Whether the driver takes many copies in one call."""
        return self._batch is not None

    def _find_batch(self) -> tuple[Any, bool]:
        """Return the batch call of this driver, and whether it is the form that returns a failed index."""
        driver_version = ctypes.c_int()
        self._library.cuDriverGetVersion(ctypes.byref(driver_version))
        find = getattr(self._library, "cuGetProcAddress_v2", None)
        version = next((candidate for candidate in _VERSIONS if candidate <= driver_version.value), None)
        if find is None or version is None:
            return None, False
        pointer, status = ctypes.c_void_p(), ctypes.c_int()
        failed = find(
            b"cuMemcpyBatchAsync",
            ctypes.byref(pointer),
            ctypes.c_int(version),
            ctypes.c_uint64(0),
            ctypes.byref(status),
        )
        if failed or not pointer.value:
            return None, False
        has_index = version == _WITH_FAILED_INDEX
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int,
            *[ctypes.c_void_p] * 3,
            ctypes.c_size_t,
            *[ctypes.c_void_p] * 2,
            ctypes.c_size_t,
            *[ctypes.c_void_p] * (2 if has_index else 1),
        )
        return kind(pointer.value), has_index

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._check("copy", self._copy(target, source, nbytes, stream))

    def copy_batch(self, targets: I64, sources: I64, sizes: I64, stream: int) -> None:
        """Enqueue copies, given as arrays of one length. The arrays are read before this returns."""
        if self._batch is None:
            for target, source, nbytes in zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True):
                self.copy(target, source, nbytes, stream)
            return
        first = ctypes.c_size_t(0)
        failed = ctypes.c_size_t(0)
        index = [ctypes.byref(failed)] if self._has_index else []
        arrays = [np.ascontiguousarray(array) for array in (targets, sources, sizes)]
        code = self._batch(
            *(_address(array) for array in arrays),
            len(sizes),
            ctypes.byref(self._attributes),
            ctypes.byref(first),
            1,
            *index,
            stream,
        )
        self._check(f"copy {len(sizes)} pieces", code)

    def load(self, ptx: str, name: str) -> tuple[int, int]:
        """Load a kernel into the context of this thread. Return its module and its function. Raise DeviceError."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check("load a kernel", self._library.cuModuleLoadData(ctypes.byref(module), ptx.encode()))
        code = self._library.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        self._check("find a kernel", code)
        return int(module.value or 0), int(function.value or 0)

    def unload(self, module: int) -> None:
        self._check("unload a kernel", self._library.cuModuleUnload(ctypes.c_void_p(module)))

    def launch(self, function: int, blocks: int, threads: int, arguments: Sequence[Any], stream: int) -> None:
        """Enqueue a kernel with arguments that are objects of ctypes."""
        parameters = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        sizes = [ctypes.c_uint(size) for size in (blocks, 1, 1, threads, 1, 1, 0)]
        launched = self._library.cuLaunchKernel(
            ctypes.c_void_p(function), *sizes, ctypes.c_void_p(stream), parameters, None
        )
        self._check("launch a kernel", launched)

    def _check(self, what: str, code: int) -> None:
        if not code:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(text))
        name = runtime_name((text.value or b"").decode()) or f"CUresult {code}"
        raise DeviceError(what, name, advice_for(name), lasting=name in LASTING)


def _address(array: npt.NDArray[np.int64]) -> int:
    return int(array.ctypes.data)


_OTHERWISE = {
    "CUDA_ERROR_LAUNCH_FAILED": "cudaErrorLaunchFailure",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "cudaErrorECCUncorrectable",
    "CUDA_ERROR_OUT_OF_MEMORY": "cudaErrorMemoryAllocation",
}
"""Errors that the runtime names in other words."""


def runtime_name(name: str) -> str:
    """Return the runtime's name of a driver error: cudaErrorInvalidValue for CUDA_ERROR_INVALID_VALUE."""
    if name in _OTHERWISE:
        return _OTHERWISE[name]
    words = name.removeprefix("CUDA_ERROR_").split("_")
    return "cudaError" + "".join(word.capitalize() for word in words) if name else ""
