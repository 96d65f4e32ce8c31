"""Ratio, speed and error of the codecs of tiers, on one core: `python -m benchmarks.tiers.codecs`.

Blocks of 2 MiB of bfloat16 with heads of 128: normally distributed, and with outliers in a few channels of each head.
"""

import time
from collections.abc import Callable

import numpy as np

from dataplane.protocol.stored_blocks import BlockForm
from dataplane.tiers.codecs.decoding import CODECS

BLOCK_BYTES, HEAD_SIZE, ROUNDS = 2 << 20, 128, 40
FORM = BlockForm("bfloat16", HEAD_SIZE)


def bfloat16(values: np.ndarray) -> bytes:
    bits = values.astype(np.float32).view(np.uint32)
    rounded: bytes = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    return rounded


def numbers(data: bytes | bytearray) -> np.ndarray:
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def samples() -> dict[str, bytes]:
    """Return the blocks by name."""
    values = np.random.default_rng(0).standard_normal((BLOCK_BYTES // 2 // HEAD_SIZE, HEAD_SIZE))
    outliers = values.copy()
    outliers[:, 7] *= 60
    outliers[:, [33, 90]] *= 20
    return {"normal": bfloat16(values), "outliers": bfloat16(outliers)}


def mb_per_s(call: Callable[[], object]) -> float:
    """Return the best of several rounds, per second of CPU time."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        call()
        best = min(best, time.thread_time() - began)
    return BLOCK_BYTES / best / 1e6


def main() -> None:
    for kind, data in samples().items():
        for name, codec in CODECS.items():
            encoding, encoded = codec.encode(data, FORM)
            into = bytearray(BLOCK_BYTES)
            encode = mb_per_s(lambda codec=codec, data=data: codec.encode(data, FORM))  # type: ignore[misc]
            decode = mb_per_s(
                lambda codec=codec, encoding=encoding, encoded=encoded, into=into: codec.decode(  # type: ignore[misc]
                    encoding, encoded, memoryview(into)
                )
            )
            before, after = numbers(data), numbers(into)
            scale = np.abs(before).reshape(-1, HEAD_SIZE).max(axis=1)[:, None] * 2.0**-13
            large = (np.abs(before).reshape(-1, HEAD_SIZE) >= scale).ravel()
            error = np.abs(after - before)[large] / np.abs(before)[large]
            cosine = before @ after / (np.linalg.norm(before) * np.linalg.norm(after))
            print(
                f"{kind:9} {name:5} {encoding.nbytes / BLOCK_BYTES:6.1%} of the bytes, encode {encode:4.0f} MB/s, "
                f"decode {decode:4.0f} MB/s, largest relative error {error.max():.4f} of {large.mean():.2%} of the "
                f"elements, "
                f"cosine {cosine:.6f}, mean error {np.linalg.norm(after - before) / np.linalg.norm(before):.2%}"
            )


if __name__ == "__main__":
    main()
