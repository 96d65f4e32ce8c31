"""An engine with paged memory on a device, which lets the data plane copy; in this process, or in one of its own."""

from __future__ import annotations

import json
from typing import Any

from dataplane.client import Code, Space, attach
from dataplane.client.driven import Copy
from dataplane.client.engine_memory import chunk_layout, exported
from tests.gpu.layouts import CHUNK, TOKENS, Layout, layout
from tests.gpu.machines import WAIT_S, Machine, Other, start_process
from tests.gpu.paged_memory import PagedMemory

PER_CHUNK = CHUNK // TOKENS
KIND = "keys and values first, NHD"


class Engine(PagedMemory):
    """Its memory, and its client."""

    def __init__(self, machine: Machine, socket: str, kind: Layout, dtype: str, **options: Any) -> None:
        super().__init__(machine, kind)
        self.tensors = [
            exported(machine.runtime, self.address + offset * kind.item_bytes, dtype, kind.shape, stride)
            for stride, offset in zip(kind.strides, kind.offsets, strict=True)
        ]
        form, self.chunk_bytes = chunk_layout(self.tensors, tokens_per_block=TOKENS)
        self.space = Space(model="driven", layout=form, dtype=dtype, block_bytes=self.chunk_bytes)
        self.client = attach(socket, [self.space], **{"timeout_s": 30.0, **options})

    def register(self) -> Code | None:
        return self.client.register_cache(self.tensors, tokens_per_block=TOKENS)

    def close(self) -> None:
        self.client.close()
        self.free()


def make(machine: Machine, socket: str, arguments: dict[str, Any], **options: Any) -> Engine:
    dtype = arguments.get("dtype", "float16")
    kind = layout(
        arguments.get("layout", KIND), dtype, arguments.get("page_bytes", 16 << 10), blocks=arguments.get("blocks", 40)
    )
    return Engine(machine, socket, kind, dtype, **options)


def done(copy: Copy) -> Copy:
    """A copy that has ended."""
    assert copy.wait(WAIT_S)
    return copy


class Process(Other):
    """Another process, of `tests.driven.roles`."""

    def __init__(self, role: str, arguments: dict[str, Any]) -> None:
        self.process = start_process("tests.driven.roles", role, json.dumps(arguments))
