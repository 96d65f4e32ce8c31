"""Advice for CUDA errors, by name. Covers the errors that users meet; other errors are reported by name only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

EXPANDABLE = (
    "memory of the CUDA VMM API has no such handle: start the engine with "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False and without vLLM's sleep mode"
)
ELSEWHERE = (
    "the engine is gone, of another user or in another container: run both as one user, in one IPC and PID namespace "
    "(Docker: --ipc and --pid of the engine's container), with the same GPUs visible"
)

ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "cudaErrorMemoryAllocation": "the device or the machine is out of memory: give engines less of it",
        "cudaErrorInsufficientDriver": "no driver, or an older one than this build needs: look at nvidia-smi",
        "cudaErrorNoDevice": "no GPU is visible: look at CUDA_VISIBLE_DEVICES, or --gpus of Docker",
        "cudaErrorInitializationError": "CUDA does not survive a fork: start a new process instead",
        "cudaErrorDeviceUninitialized": "a process cannot open its own memory",
        "cudaErrorMapBufferObjectFailed": ELSEWHERE,
        "cudaErrorInvalidResourceHandle": ELSEWHERE,
        "cudaErrorHostMemoryAlreadyRegistered": "another part of this process has pinned this memory already",
        "cudaErrorNotSupported": "this device or driver cannot do it",
        "cudaErrorPeerAccessUnsupported": "the two GPUs do not reach each other",
        "cudaErrorTooManyPeers": "the GPU cannot access more peers",
        "cudaErrorECCUncorrectable": "the GPU's memory is faulty: replace it",
        "cudaErrorSystemDriverMismatch": "driver and libraries are of different versions: restart the machine",
    }
)

LASTING = frozenset(
    {
        "cudaErrorIllegalAddress",
        "cudaErrorLaunchTimeout",
        "cudaErrorHardwareStackError",
        "cudaErrorIllegalInstruction",
        "cudaErrorMisalignedAddress",
        "cudaErrorInvalidAddressSpace",
        "cudaErrorInvalidPc",
        "cudaErrorLaunchFailure",
        "cudaErrorECCUncorrectable",
        "cudaErrorNvlinkUncorrectable",
        "cudaErrorAssert",
        "cudaErrorContained",
        "cudaErrorMpsServerNotReady",
    }
)
"""Errors after which every call on the device fails in this process."""
RESTART = "this process can no longer use the GPU: restart the process"


def advice_for(name: str) -> str:
    return RESTART if name in LASTING else ADVICE.get(name, "")
