"""The kernel that copies pages of device memory and registered host memory. Needs Triton to be imported."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_pages(targets, sources, pages, words, programs: tl.constexpr, piece: tl.constexpr):
    """Pages of `words` 64-bit words, from addresses to addresses; each program takes every `programs`-th page."""
    for page in range(tl.program_id(0), pages, programs):
        # Two words at a time: addresses are multiples of 16.
        target = tl.multiple_of(tl.load(targets + page).to(tl.pointer_type(tl.int64)), 16)
        source = tl.multiple_of(tl.load(sources + page).to(tl.pointer_type(tl.int64)), 16)
        for at in range(0, words, piece):
            offsets = at + tl.arange(0, piece)
            mask = offsets < tl.multiple_of(words, 2)
            tl.store(target + offsets, tl.load(source + offsets, mask=mask), mask=mask)
