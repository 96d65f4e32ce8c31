"""What consumers of KV events do with a payload, field by field: llm-d (`pkg/kvevents/engineadapter/vllm_adapter.go`),
Dynamo (`lib/kv-router/src/zmq_wire`) and AIBrix (`pkg/cache/kvcache/msgpack_decoder.go`).

Each returns (kind, hashes, parent, tokens, medium) of every event, and raises where the consumer would refuse.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

_U64 = (1 << 64) - 1
_KEYS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")


class Refused(Exception):
    pass


class Decoded(NamedTuple):
    kind: str
    hashes: tuple[int, ...] = ()
    parent: int | None = None
    tokens: tuple[int, ...] = ()
    block_size: int = 0
    medium: str = ""
    extra: Any = None


def _batch(payload: bytes) -> list[Any]:
    raw = msgspec.msgpack.decode(payload)
    _demand(isinstance(raw, list) and len(raw) == 3, "[ts, events, dp_rank]")
    at, events, rank = raw
    _demand(isinstance(at, float), "a float timestamp")
    _demand(isinstance(events, list), "a list of events")
    _demand(isinstance(rank, int), "an integer rank")
    return events


def _demand(condition: bool, what: str) -> None:
    if not condition:
        raise Refused(f"expected {what}")


def _fields(event: Any, *, maps: bool) -> dict[str, Any]:
    """The fields of a map by their names, and of an array by their places."""
    if isinstance(event, dict):
        _demand(maps, "an array")
        _demand(isinstance(event.get("type"), str), "the type of the event under 'type'")
        return event
    _demand(isinstance(event, list) and bool(event) and isinstance(event[0], str), "an array with a tag")
    if event[0] == "BlockStored":
        _demand(len(event) >= 5, "at least five fields of BlockStored")
        return {"type": event[0], **dict(zip((*_KEYS, "extra_keys"), event[1:], strict=False))}
    if event[0] == "BlockRemoved":
        _demand(len(event) >= 2, "at least two fields of BlockRemoved")
        return {"type": event[0], **dict(zip(("block_hashes", "medium"), event[1:], strict=False))}
    return {"type": event[0]}


def _decoded(fields: dict[str, Any]) -> Decoded:
    kind = fields["type"]
    if kind == "AllBlocksCleared":
        return Decoded(kind)
    _demand(kind in ("BlockStored", "BlockRemoved"), "a known event")
    hashes, medium = fields["block_hashes"], fields.get("medium")
    _demand(all(type(each) is int and 0 <= each <= _U64 for each in hashes), "hashes of 64 bits")
    _demand(medium is None or isinstance(medium, str), "a medium by name")
    if kind == "BlockRemoved":
        return Decoded(kind, tuple(hashes), medium=medium or "")
    parent, tokens, size = fields["parent_block_hash"], fields["token_ids"], fields["block_size"]
    _demand(parent is None or (type(parent) is int and 0 <= parent <= _U64), "a parent of 64 bits, or nil")
    _demand(isinstance(tokens, list), "a list of token ids")
    _demand(all(type(each) is int and 0 <= each < 1 << 32 for each in tokens), "token ids of 32 bits")
    _demand(type(size) is int and size > 0, "a block size")
    _demand(fields.get("lora_id") is None and fields.get("lora_name") is None, "no LoRA")
    extra = fields.get("extra_keys")
    if extra is not None:
        _demand(len(extra) == len(hashes), "one entry of extra keys per block")
        _demand(all(each is None or isinstance(each, list) for each in extra), "lists of extra keys")
    return Decoded(kind, tuple(hashes), parent, tuple(tokens), size, medium or "", extra)


def llm_d(payload: bytes, *, old: bool = False) -> list[Decoded]:
    """Before PR 661 it took arrays only. A hash of 0 stands for no parent."""
    found = [_decoded(_fields(event, maps=not old)) for event in _batch(payload)]
    _demand(all(0 not in each.hashes for each in found), "no hash 0")
    return found


def dynamo(payload: bytes, block_size: int) -> list[Decoded]:
    """It publishes the leading blocks that have its block size and all of their tokens, and refuses an event in which a
    hash occurs twice or is its own parent."""
    found = []
    for each in (_decoded(_fields(event, maps=True)) for event in _batch(payload)):
        if each.kind == "BlockStored":
            _demand(len({each.parent, *each.hashes}) == len(each.hashes) + 1, "hashes that differ")
            full = len(each.tokens) // block_size if each.block_size == block_size else 0
            each = each._replace(hashes=each.hashes[:full])
        found.append(each)
    return found


def aibrix(payload: bytes, *, old: bool = True) -> list[Decoded]:
    """Releases of mid-2026 take maps too. Tokens must fill whole blocks. Hashes become signed."""
    found = []
    for each in (_decoded(_fields(event, maps=not old)) for event in _batch(payload)):
        if each.tokens:
            _demand(len(each.tokens) % each.block_size == 0, "whole blocks of tokens")
        found.append(each)
    return found
