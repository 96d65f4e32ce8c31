"""Messages on the wire: one example of each is frozen, so that no change goes unnoticed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.base.field_errors import described
from dataplane.protocol import engine, events, join
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.messages import ControlReply, ControlRequest
from dataplane.protocol.control.records import (
    PinSpec,
    PolicySpec,
    QuotaSpec,
    encode_pins,
    encode_policies,
    encode_quotas,
    encode_tiers,
)
from dataplane.protocol.tiers import TierSpec
from tests.golden_file import Golden

UNIONS: dict[str, UnionType] = {
    "engine requests": engine.EngineRequest,
    "engine answers": engine.EngineReply,
    "control requests": ControlRequest,
    "control answers": ControlReply,
    "join answers": join.JoinReply,
    "events": events.Event,
}


def example(kind: type[Any], numbers: Iterator[int] | None = None) -> Any:
    """Return a message of which no field has its default, so that each is on the wire. Equal for equal types."""
    numbers = numbers or count(1)
    return kind(
        **{
            field.name: not field.default if field.type is bool else _value(field.type, field, numbers)
            for field in msgspec.structs.fields(kind)
        }
    )


def _value(kind: Any, field: msgspec.structs.FieldInfo, numbers: Iterator[int]) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _value(inner[0], field, numbers)
    if origin is Literal:
        return next(each for each in reversed(inner) if each != field.default)
    if origin in (list, set, frozenset, tuple):
        return origin([_value(inner[0], field, numbers)])
    if origin is dict:
        return {_value(inner[0], field, numbers): _value(inner[1], field, numbers)}
    if inner:  # a union: its first type that says something
        return _value(next(each for each in inner if each not in (NoneType, msgspec.UnsetType)), field, numbers)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return example(kind, numbers)
    number = next(numbers)
    simple = {int: number, float: number + 0.5, str: f"{field.name}-{number}", bytes: bytes([number % 256] * 8)}
    return {**simple, bool: True, Any: number, object: number}[kind]


def frozen() -> dict[str, dict[str, str]]:
    pages = {
        page: {str(kind.__struct_config__.tag): encode(example(kind)).hex() for kind in get_args(union)}
        for page, union in UNIONS.items()
    }
    pages["join questions"] = {"join": encode(example(join.Join)).hex()}
    pages["bodies"] = {
        "quotas": encode_quotas([QuotaSpec("b"), QuotaSpec("a", 4096)]).hex(),
        "pins": encode_pins([PinSpec("y", "llama", "", "d" * 64), PinSpec("x", "llama", "a", "e" * 64, 9.5)]).hex(),
        "policies": encode_policies([PolicySpec("default", "arc", True)]).hex(),
        "tiers": encode_tiers(
            [
                TierSpec("shared", "redis", 1 << 40, {"url": "redis://cache"}, 1, "second_touch", 2.5, 1 << 24),
                TierSpec("disk", "disk", 1 << 30),
            ]
        ).hex(),
    }
    return pages


def test_messages_are_stable(golden: Golden) -> None:
    golden("wire.json", json.dumps(frozen(), indent=1) + "\n")


@pytest.mark.parametrize("page", UNIONS)
def test_every_message_comes_back_as_it_went(page: str) -> None:
    kinds = get_args(UNIONS[page])
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)
    for kind in kinds:
        message = example(kind)
        assert decode(decoder(UNIONS[page]), encode(message)) == message
        assert len(msgspec.msgpack.decode(encode(message))) == 1 + len(kind.__struct_fields__), "with its tag"


def test_the_same_intent_has_the_same_digest() -> None:
    one, two = QuotaSpec("a", 1), QuotaSpec("b", 2)
    assert encode_quotas([one, two]) == encode_quotas([two, one])
    first, second = PinSpec("a", "m", "", "d"), PinSpec("b", "m", "", "d")
    assert encode_pins([first, second]) == encode_pins([second, first])


def test_requests_with_more_fields_than_known_are_malformed() -> None:
    raw = msgspec.msgpack.decode(encode(engine.Detach(1)))
    with pytest.raises(ProtocolError) as caught:
        decode(decoder(engine.EngineRequest), msgspec.msgpack.encode([*raw, "more"]))
    assert caught.value.code is Code.MALFORMED
    with pytest.raises(ProtocolError, match="unknown"):
        decode(decoder(ControlRequest), msgspec.msgpack.encode({"op": "describe", "nonce": "", "x": 1}))


@given(data=st.binary(max_size=300))
def test_no_bytes_raise_anything_but_protocol_errors(data: bytes) -> None:
    for union in (engine.EngineRequest, engine.EngineReply, ControlRequest, events.Event):
        try:
            decode(decoder(union), data)
        except ProtocolError as error:
            assert error.code is Code.MALFORMED  # noqa: PT017 (a message of random bytes is possible)


@pytest.mark.parametrize(
    ("message", "path", "text"),
    [
        ("Expected `int`, got `str` - at `$.limit_bytes`", "limit_bytes", "expected bytes as a whole number, got text"),
        ("Expected `int` - at `$[3].a`", "[3].a", "expected a whole number"),
        ("no path", "", "no path"),
        ("Expected `int` - at `$`", "", "expected a whole number"),
    ],
)
def test_paths_are_cut_out_of_messages(message: str, path: str, text: str) -> None:
    assert described(message) == (path, text)


def test_a_malformed_message_names_its_field() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(decoder(ControlRequest), msgspec.msgpack.encode({"op": "hello", "version": "1", "manager": ""}))
    assert caught.value.field == "version"
