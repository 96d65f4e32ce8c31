"""Kernel that copies pages of device memory and registered host memory. Importing this module requires Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["pages", "words"])  # another number of pages is no reason to compile again
def copy_pages(targets, sources, pages, words, programs: tl.constexpr, piece: tl.constexpr):
    """Copy pages of `words` 64-bit words between address lists; each program takes every `programs`-th page."""
    for page in range(tl.program_id(0), pages, programs):
        # Addresses are multiples of 16, so two words can be copied at a time.
        target = tl.multiple_of(tl.load(targets + page).to(tl.pointer_type(tl.int64)), 16)
        source = tl.multiple_of(tl.load(sources + page).to(tl.pointer_type(tl.int64)), 16)
        for at in range(0, words, piece):
            offsets = at + tl.arange(0, piece)
            mask = offsets < tl.multiple_of(words, 2)
            tl.store(target + offsets, tl.load(source + offsets, mask=mask), mask=mask)
