"""The kernel that copies pages between device memory and registered host memory. Needs Triton to be imported."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_pages(targets, sources, pages, words, programs: tl.constexpr, piece: tl.constexpr):
    """Pages of `words` 64-bit words, from addresses to addresses; each program takes every `programs`-th page."""
    for page in range(tl.program_id(0), pages, programs):
        target = tl.load(targets + page).to(tl.pointer_type(tl.int64))
        source = tl.load(sources + page).to(tl.pointer_type(tl.int64))
        for at in range(0, words, piece):
            offsets = at + tl.arange(0, piece)
            mask = offsets < words
            tl.store(target + offsets, tl.load(source + offsets, mask=mask), mask=mask)
