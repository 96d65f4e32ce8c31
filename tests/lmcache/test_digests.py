"""MD5 of what engines hold in their own memory: the bytes that are there, and refusals instead of anything else."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import md5
from typing import Any

import msgspec
import pytest

from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.messages import ControlRefused, ControlReply
from dataplane.protocol.control.verification import DigestEngine, EngineDigests
from tests.lmcache.client import Client
from tests.lmcache.engine_memory import EngineMemory
from tests.lmcache.gateway import Gateway


@pytest.fixture
def engine() -> Iterator[EngineMemory]:
    with EngineMemory() as memory:
        memory.fill(3)
        yield memory


def control_reply(bench: Gateway, **fields: Any) -> ControlReply:
    """What the gateway replies, when it has read."""
    replies: list[ControlReply] = []
    question = DigestEngine("n", "lmcache", 7, [3, 4, 9], 2)
    bench.server.digests.begin(msgspec.structs.replace(question, **fields), replies.append)
    bench.until(lambda: replies, "it replies")
    return replies[0]


def expected(engine: EngineMemory, layers: list[int], blocks: list[int]) -> str:
    """Layer by layer, keys before values, block by block."""
    digest = md5()
    for layer in layers:
        digest.update(engine.layer(layer).take(blocks, 1).tobytes())
    return digest.hexdigest()


def test_digests_are_of_the_bytes_of_each_chunks_blocks(gateway: Gateway, client: Client, engine: EngineMemory) -> None:
    client.ask("register_kv_cache", *engine.registration())
    both = [[expected(engine, [0, 1], [3, 4]), expected(engine, [0, 1], [9])]]
    assert control_reply(gateway) == EngineDigests("n", both)
    each = [[expected(engine, [layer], [3, 4]), expected(engine, [layer], [9])] for layer in range(2)]
    assert control_reply(gateway, layerwise=True) == EngineDigests("n", each)
    engine.layer(1)[:, 9] += 1
    assert control_reply(gateway) != EngineDigests("n", both)


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"instance": 8}, Code.BAD_FIELD, "instance"),
        ({"gateway": "another"}, Code.BAD_FIELD, "instance"),
        ({"blocks": []}, Code.BAD_FIELD, "blocks"),
        ({"blocks": [0] * 65_537}, Code.BAD_FIELD, "blocks"),
        ({"chunk_blocks": 0}, Code.BAD_FIELD, "chunk_blocks"),
        ({"chunk_blocks": -1}, Code.BAD_FIELD, "chunk_blocks"),
    ],
)
def test_a_question_that_cannot_be_is_refused(
    gateway: Gateway, client: Client, engine: EngineMemory, fields: dict[str, Any], code: Code, field: str
) -> None:
    client.ask("register_kv_cache", *engine.registration())
    with pytest.raises(ProtocolError) as refused:
        control_reply(gateway, **fields)
    assert (refused.value.code, refused.value.field) == (code, field)


@pytest.mark.parametrize("blocks", [[-1], [64], [1 << 62]])
def test_blocks_that_the_engine_has_not_are_refused(
    gateway: Gateway, client: Client, engine: EngineMemory, blocks: list[int]
) -> None:
    client.ask("register_kv_cache", *engine.registration())
    answer = control_reply(gateway, blocks=blocks)
    assert isinstance(answer, ControlRefused)
    assert (answer.field, answer.nonce) == ("blocks", "n")


def test_memory_of_a_worker_that_copies_by_itself_is_its_own(gateway: Gateway, client: Client) -> None:
    client.register()
    with pytest.raises(ProtocolError) as refused:
        control_reply(gateway)
    assert refused.value.code is Code.UNSUPPORTED
