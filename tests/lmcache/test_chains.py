"""Tokens to keys: the same keys as everywhere in Larder, hashed once however often a request repeats them."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from dataplane.gateways.lmcache.handlers.chains import MAX_TOKENS, RequestChains
from dataplane.gateways.lmcache.wire import tokens
from dataplane.gateways.lmcache.wire.messages import Key
from dataplane.gateways.lmcache.wire.operations import BY_NAME
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.keys import TokenError, chain
from tests.lmcache.client import in_bytes, key, packed

_decode = BY_NAME["prepare_store"].arguments[0]
SEED = random.Random(5)
SHAPES = {
    "one byte each": [at % 128 for at in range(600)],
    "two bytes each": [128 + at % 128 for at in range(600)],
    "three bytes each": [SEED.randrange(256, 65_536) for _ in range(600)],
    "five bytes each": [SEED.randrange(65_536, 2**32) for _ in range(600)],
    "as a vocabulary of 128,000 has them": [SEED.randrange(128_000) for _ in range(2000)],
    "borders": [0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1] * 64,
    "fewer than a chunk": list(range(15)),
    "none": [],
}


Form = Callable[[dict[str, Any]], dict[str, Any]]
FORMS: tuple[Form, ...] = (dict, in_bytes)
"""A key as clients before and since 0.5.7 send it."""


def request_of(chains: RequestChains, ids: Sequence[int], request: str = "r", **fields: Any) -> bytes:
    """Packed keys of what a frame says, by the way that the server goes."""
    return request_of_frame(chains, packed(key(ids, request, **fields)))


def request_of_frame(chains: RequestChains, frame: bytes) -> bytes:
    short, same = chains.shortened(frame)
    chain, count = chains.of(_decode(short), same)
    return chain.keys(0, count)


@pytest.mark.parametrize("ids", SHAPES.values(), ids=SHAPES.keys())
def test_arrays_are_decoded_for_any_size_of_elements(ids: list[int]) -> None:
    data = packed(ids)
    count, first = tokens.header(data)
    assert count == len(ids)
    assert array("I", tokens.decode(data[first:], count)).tolist() == ids


@pytest.mark.parametrize("form", FORMS)
def test_a_request_is_hashed_once(form: Form) -> None:
    chains, ids = RequestChains(), SHAPES["as a vocabulary of 128,000 has them"]
    first = request_of_frame(chains, packed(form(key(ids))))
    for worker in range(8):
        assert request_of_frame(chains, packed(form(key(ids, worker_id=worker, start=256, end=512)))) == first
    assert chains.hashed_chunks == 7


@pytest.mark.parametrize("form", FORMS)
def test_a_longer_array_continues_where_the_shorter_one_ended(form: Form) -> None:
    chains, ids = RequestChains(), [SEED.randrange(128_000) for _ in range(3000)]
    for end in (100, 256, 300, 511, 1024, 1030, 3000):
        assert request_of_frame(chains, packed(form(key(ids[:end])))) == b"".join(chain(ids[:end]))
    assert chains.hashed_chunks == 11


@pytest.mark.parametrize("ids", SHAPES.values(), ids=SHAPES.keys())
def test_both_forms_of_tokens_have_the_keys_of_the_rest_of_larder(ids: list[int]) -> None:
    chains = RequestChains()
    expected = b"".join(chain(ids, "a"))
    for form in (*FORMS, *FORMS):
        assert request_of_frame(chains, packed(form(key(ids, cache_salt="a")))) == expected


def test_equal_bytes_in_two_forms_are_different_tokens() -> None:
    chains = RequestChains()
    elements = [0xCDCDCDCD] * 256  # as an array of u16: 0xCD, then 0xCDCD, and so on
    body = in_bytes(key(elements))["token_bytes"]
    array = msgspec.Raw(b"\xdc" + (341).to_bytes(2, "big") + body[:1023])
    first = request_of_frame(chains, packed({**key([]), "token_ids": array, "end": 256}))
    second = request_of_frame(chains, packed(in_bytes(key(elements))))
    assert first == b"".join(chain([0xCDCD] * 341))
    assert second == b"".join(chain(elements))


def test_a_shorter_array_of_the_same_request_is_not_hashed() -> None:
    chains, ids = RequestChains(), SHAPES["three bytes each"]
    whole = request_of(chains, ids)
    assert request_of(chains, ids[:300]) == whole[:32]
    assert request_of(chains, ids[:300], end=10**6) == whole[:32]
    assert chains.hashed_chunks == 2


def test_a_conversation_that_continues_under_another_name_is_not_hashed_from_its_start() -> None:
    chains, ids = RequestChains(), [SEED.randrange(128_000) for _ in range(4000)]
    for turn, end in enumerate((1000, 1900, 4000, 4000)):
        assert request_of(chains, ids[:end], f"turn {turn}") == b"".join(chain(ids[:end]))
    assert chains.hashed_chunks == 15
    assert request_of(chains, ids, "another tenant", cache_salt="a") == b"".join(chain(ids, "a"))


def test_the_same_tokens_under_another_salt_have_other_keys() -> None:
    chains, ids = RequestChains(), SHAPES["three bytes each"]
    assert request_of(chains, ids, cache_salt="a") == b"".join(chain(ids, "a"))
    assert request_of(chains, ids, cache_salt="b") == b"".join(chain(ids, "b"))
    assert request_of(chains, ids, "other", cache_salt="a") == b"".join(chain(ids, "a"))


def test_a_request_that_changes_a_token_has_other_keys() -> None:
    chains, ids = RequestChains(), SHAPES["as a vocabulary of 128,000 has them"]
    request_of(chains, ids)
    changed = [*ids[:1500], ids[1500] ^ 1, *ids[1501:]]
    assert request_of(chains, changed) == b"".join(chain(changed))


@pytest.mark.parametrize("wide", [b"\xcd\x00\x05", b"\xce\x00\x00\x00\x05", b"\xcf" + bytes(7) + b"\x05", b"\xd0\x05"])
def test_elements_that_take_more_room_than_they_need_give_the_same_keys(wide: bytes) -> None:
    chains = RequestChains()
    for count in (256, 300, 512, 700):
        raw = b"\xdd" + count.to_bytes(4, "big") + wide * count
        frame = _with_tokens(key([], end=512), raw)
        assert request_of_frame(chains, frame) == b"".join(chain([5] * count))


@pytest.mark.parametrize(
    "ids", [[-1] * 300, [2**32] * 300, [1.5] * 300, ["1"] * 300, [None] * 300, [[1]] * 300, [True] * 300], ids=str
)
def test_an_invalid_token_is_refused(ids: list[Any]) -> None:
    with pytest.raises(TokenError):
        request_of(RequestChains(), ids)


@pytest.mark.parametrize("value", [{}, "tokens", 5, b"\x01\x02"])
def test_a_value_that_is_not_an_array_is_refused(value: Any) -> None:
    with pytest.raises(TokenError):
        request_of(RequestChains(), [], token_ids=value)


def test_more_tokens_than_a_reservation_has_keys_for_are_refused() -> None:
    raw = b"\xdd" + (MAX_TOKENS + 1).to_bytes(4, "big") + b"\x01" * (MAX_TOKENS + 1)
    with pytest.raises(TokenError, match="at most 1048576 tokens"):
        request_of_frame(RequestChains(), _with_tokens(key([]), raw))


@pytest.mark.parametrize("salt", ["a/b", "a@b", "a\\b", "a\0b", "x" * 129, "_default", "a\nb"])
def test_a_salt_that_breaks_the_rules_is_refused(salt: str) -> None:
    with pytest.raises(ProtocolError) as error:
        request_of(RequestChains(), list(range(300)), cache_salt=salt)
    assert error.value.code is Code.BAD_SALT


def test_tokens_are_found_only_in_their_own_field() -> None:
    chains, ids, other = RequestChains(), list(range(300)), list(range(1000, 1600))
    request_of(chains, ids)
    nested = {"request_configs": {"token_ids": ids}, **{k: v for k, v in key(other).items() if k != "request_configs"}}
    assert request_of_frame(chains, packed(nested)) == b"".join(chain(other))


def test_a_frame_that_ends_within_its_tokens_is_refused_as_a_key() -> None:
    chains, ids = RequestChains(), SHAPES["three bytes each"]
    frame = packed(key(ids))
    request_of(chains, ids)
    for cut in (5, 60, 200, len(frame) // 2, len(frame) - 1):
        short, _ = chains.shortened(frame[:cut])
        with pytest.raises(msgspec.DecodeError):
            _decode(short)


def test_chains_are_bounded_by_number_and_by_bytes() -> None:
    chains = RequestChains(max_chains=10, max_bytes=1 << 20)
    for at in range(100):
        request_of(chains, [at + 300] * 512, f"r{at}")
    assert len(chains) == 10
    chains = RequestChains(max_bytes=10_000)
    for at in range(100):
        request_of(chains, [at + 300] * 512, f"r{at}")
    assert chains.nbytes <= 10_000
    assert 1 <= len(chains) <= 6


def _with_tokens(fields: dict[str, Any], raw: bytes) -> bytes:
    return packed({**fields, "token_ids": msgspec.Raw(raw)})


def test_keys_decode_with_unknown_fields() -> None:
    decoded: Key = _decode(packed({**key([1, 2]), "brand": {"new": [1, None, 2.5]}}))
    assert decoded.request_id == "r"
