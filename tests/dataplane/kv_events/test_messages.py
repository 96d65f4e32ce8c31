"""The encoding of KV events: golden payloads in both formats, and what each consumer reads from them."""

from __future__ import annotations

import pytest

from dataplane.kv_events.messages import EventEncoder, batch, block_hash, block_hashes, rank
from tests.dataplane import factories as make
from tests.dataplane.kv_events import decoders
from tests.dataplane.kv_events.decoders import Decoded

TOKENS = bytes([1, 0, 0, 0, 0, 1, 0, 0])
CHAIN = [0x1122334455667788, 0xFFEEDDCCBBAA0099]
STORED = Decoded("BlockStored", tuple(CHAIN), 7, (1, 256), 1, "CPU")
ROOT = Decoded("BlockStored", (CHAIN[0],), None, (1,), 1, "CPU", [["acme"]])
REMOVED = Decoded("BlockRemoved", (CHAIN[1],), medium="CPU")
ALL = [STORED, ROOT, REMOVED, Decoded("AllBlocksCleared")]
GOLDEN = {
    "map": (
        "93cb4059000000000000"
        "9488a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf1122334455667788cfffeeddccbbaa0099"
        "b1706172656e745f626c6f636b5f6861736807a9746f6b656e5f6964739201cd0100aa626c6f636b5f73697a6501a76c6f72615f6964c0"
        "a66d656469756da3435055a96c6f72615f6e616d65c0"
        "89a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf1122334455667788"
        "b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739101aa626c6f636b5f73697a6501a76c6f72615f6964c0"
        "a66d656469756da3435055a96c6f72615f6e616d65c0aa65787472615f6b6579739191a461636d65"
        "83a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cfffeeddccbbaa0099a66d656469756da3435055"
        "81a474797065b0416c6c426c6f636b73436c6561726564"
        "03"
    ),
    "array": (
        "93cb4059000000000000"
        "9498ab426c6f636b53746f72656492cf1122334455667788cfffeeddccbbaa0099079201cd010001c0a3435055c0"
        "99ab426c6f636b53746f72656491cf1122334455667788c0910101c0a3435055c09191a461636d65"
        "93ac426c6f636b52656d6f76656491cfffeeddccbbaa0099a3435055"
        "91b0416c6c426c6f636b73436c6561726564"
        "03"
    ),
}


def payload(layout: str) -> bytes:
    encoder = EventEncoder(layout, "CPU")  # type: ignore[arg-type]
    events = [
        encoder.stored(list(CHAIN), 7, TOKENS, 1),
        encoder.stored(CHAIN[:1], None, TOKENS[:4], 1, "acme"),
        encoder.removed(CHAIN[1:]),
        encoder.cleared(),
    ]
    return batch(100.0, events) + rank(3)


@pytest.mark.parametrize("layout", ["map", "array"])
def test_a_payload_has_these_bytes(layout: str):
    assert payload(layout).hex() == GOLDEN[layout]


@pytest.mark.parametrize("layout", ["map", "array"])
def test_consumers_of_today_read_both_formats(layout: str):
    assert decoders.llm_d(payload(layout)) == ALL
    assert decoders.aibrix(payload(layout), old=False) == ALL
    assert decoders.dynamo(payload(layout), block_size=1) == ALL


def test_older_consumers_read_arrays_alone():
    assert decoders.llm_d(payload("array"), old=True) == decoders.aibrix(payload("array")) == ALL
    with pytest.raises(decoders.Refused, match="an array"):
        decoders.llm_d(payload("map"), old=True)


def test_hashes_are_the_last_eight_bytes_of_keys_and_the_last_part_has_the_hash_of_the_chunk():
    key = make.key("a")
    assert block_hash(key) == int.from_bytes(key[-8:], "big")
    parts = block_hashes([key], 16)
    assert len(set(parts)) == 16
    assert parts[-1] == block_hash(key)
    assert all(0 <= part < 1 << 64 for part in parts)
    assert block_hashes([key], 1) == [block_hash(key)]
