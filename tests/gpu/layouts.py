"""The layouts that engines have, at pages of a chosen size, and an independent way to read them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from dataplane.devices.paged import Planes, TensorGroup, block_axis, planes_of

BLOCKS = 40
TOKENS = 16
CHUNK = 256
HEAD = 64
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
WIDTHS = ("bfloat16", "float8_e4m3fn")
"""A type of each width: a copy sees bytes."""

ORDERS: dict[str, tuple[tuple[str, ...], str]] = {
    "keys and values first, NHD": (("K", "B", "N", "H", "C"), "KBNHC"),
    "keys and values first, HND": (("K", "B", "N", "H", "C"), "KBHNC"),
    "keys and values second, NHD": (("B", "K", "N", "H", "C"), "BKNHC"),
    "keys and values second, HND": (("B", "K", "N", "H", "C"), "BKHNC"),
    "fused, LBHNC": (("B", "H", "N", "F"), "LBHNF"),
    "fused, LBNHC": (("B", "H", "N", "F"), "LBNHF"),
    "fused, LHBNC": (("B", "H", "N", "F"), "LHBNF"),
    "fused, BLHNC": (("B", "H", "N", "F"), "BLHNF"),
    "fused, BLNHC": (("B", "H", "N", "F"), "BLNHF"),
    "fused, BHLNC": (("B", "H", "N", "F"), "BHLNF"),
    "latent attention": (("B", "N", "M"), "LBNM"),
}
"""The axes of a tensor, and the order of all of them in memory: Blocks, tokeNs, Heads, Content, Keys and values,
Layers, keys and values Fused, one row (M)."""


@dataclass(frozen=True)
class Layout:
    """A cache of some layers in one allocation."""

    shape: tuple[int, ...]
    strides: list[tuple[int, ...]]
    offsets: list[int]
    item_bytes: int
    nbytes: int
    blocks: int

    def planes(self) -> list[Planes]:
        return [
            planes_of(self.shape, stride, self.item_bytes, offset)
            for stride, offset in zip(self.strides, self.offsets, strict=True)
        ]

    def group(self) -> TensorGroup:
        return TensorGroup(self.blocks, TOKENS, CHUNK // TOKENS, tuple(self.planes()))

    def layer(self, memory: npt.NDArray[np.uint8], number: int) -> npt.NDArray[np.uint8]:
        """One layer of an allocation, blocks first, as numpy's own strides say."""
        stride = [each * self.item_bytes for each in self.strides[number]]
        view = np.lib.stride_tricks.as_strided(
            memory[self.offsets[number] * self.item_bytes :], (*self.shape, self.item_bytes), (*stride, 1)
        )
        return np.moveaxis(view, block_axis(self.shape), 0)


def layout(name: str, dtype: str, page_bytes: int, layers: int = 2, blocks: int = BLOCKS) -> Layout:
    """`page_bytes` are what a block's keys (or values, or both where they are fused) take in one layer."""
    axes, order = ORDERS[name]
    item = ITEM_BYTES[dtype]
    row = page_bytes // item // TOKENS
    sizes = {
        "B": blocks,
        "N": TOKENS,
        "K": 2,
        "L": layers,
        "C": HEAD,
        "F": 2 * HEAD,
        "M": row,
        "H": row // (2 * HEAD if "F" in axes else HEAD),
    }
    if "L" not in order:  # each layer is a tensor of its own
        order = "L" + order
    steps = {axis: prod(sizes[each] for each in order[at + 1 :]) for at, axis in enumerate(order)}
    return Layout(
        shape=tuple(sizes[axis] for axis in axes),
        strides=[tuple(steps[axis] for axis in axes)] * layers,
        offsets=[number * steps["L"] for number in range(layers)],
        item_bytes=item,
        nbytes=item * prod(sizes[axis] for axis in order),
        blocks=blocks,
    )
