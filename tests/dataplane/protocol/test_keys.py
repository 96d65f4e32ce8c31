"""Identity of content: golden vectors, and that no two different inputs share a key."""

from __future__ import annotations

import json
from array import array
from hashlib import sha256
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.protocol.codes import Code
from dataplane.protocol.keys import KEY_BYTES, TokenError, chain, next_key, root_key, tenant_fingerprint, token_bytes
from tests.dataplane.bench_node import refused
from tests.golden_file import Golden

TOKENS = list(range(10))
SALTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="@/\\"), max_size=20)


def vectors() -> dict[str, object]:
    """Inputs and their keys, for whoever writes the function in another language."""
    cases: list[dict[str, Any]] = [
        {"cache_salt": "", "adapter_id": "", "chunk_tokens": 4, "tokens": TOKENS, "extras": {}},
        {"cache_salt": "team-a", "adapter_id": "", "chunk_tokens": 4, "tokens": TOKENS, "extras": {}},
        {"cache_salt": "team-a", "adapter_id": "lora-7", "chunk_tokens": 4, "tokens": TOKENS, "extras": {}},
        {"cache_salt": "größe", "adapter_id": "", "chunk_tokens": 2, "tokens": [0, 2**32 - 1, 1, 65536], "extras": {}},
        {"cache_salt": "", "adapter_id": "", "chunk_tokens": 4, "tokens": TOKENS, "extras": {"1": "ab12"}},
        {"cache_salt": "", "adapter_id": "", "chunk_tokens": 256, "tokens": list(range(512)), "extras": {}},
    ]
    for case in cases:
        case["root"] = root_key(str(case["cache_salt"]), str(case["adapter_id"])).hex()
        case["keys"] = [
            key.hex()
            for key in chain(
                case["tokens"],
                case["cache_salt"],
                adapter_id=case["adapter_id"],
                chunk_tokens=case["chunk_tokens"],
                extras={int(number): bytes.fromhex(extra) for number, extra in case["extras"].items()},
            )
        ]
        case["tenant_fingerprint"] = tenant_fingerprint(str(case["cache_salt"]))
    return {"about": "see dataplane/protocol/keys.py", "vectors": cases}


def test_keys_are_stable(golden: Golden) -> None:
    golden("keys.json", json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n")


def test_the_chain_matches_its_documentation() -> None:
    """The documented formula, written down a second time."""
    salt, adapter = b"team-a", b"lora"
    key = sha256(b"larder.root.1" + b"S" + pack("<I", 6) + salt + b"A" + pack("<I", 4) + adapter).digest()
    keys = []
    for number in range(3):
        chunk = array("I", TOKENS[3 * number : 3 * number + 3]).tobytes()
        extra = b"image" if number == 1 else b""
        key = sha256(
            b"larder.key.1" + key + b"T" + pack("<I", 12) + chunk + b"X" + pack("<I", len(extra)) + extra
        ).digest()
        keys.append(key)
    assert chain(TOKENS, "team-a", adapter_id="lora", chunk_tokens=3, extras={1: b"image"}) == keys


def test_a_salt_and_an_adapter_cannot_be_shifted_into_each_other() -> None:
    pairs = [("a", "b"), ("ab", ""), ("", "ab"), ("aA\x01".replace("\x01", "1"), "b"), ("a", "Ab")]
    assert len({root_key(salt, adapter) for salt, adapter in pairs}) == len(pairs)


@given(one=st.tuples(SALTS, SALTS), two=st.tuples(SALTS, SALTS))
def test_different_tenants_or_adapters_have_different_roots(one: tuple[str, str], two: tuple[str, str]) -> None:
    if one[0] != "_default" and two[0] != "_default":
        assert (root_key(*one) == root_key(*two)) == (one == two)


@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=40),
    step=st.integers(1, 9),
    extra=st.binary(max_size=8),
    at=st.integers(0, 5),
)
def test_keys_are_one_for_each_full_chunk_and_name_their_whole_prefix(
    tokens: list[int], step: int, extra: bytes, at: int
) -> None:
    keys = chain(tokens, chunk_tokens=step)
    assert len(keys) == len(tokens) // step
    assert all(len(key) == KEY_BYTES for key in keys)
    assert len(set(keys)) == len(keys)
    assert chain(tokens[: step * 2], chunk_tokens=step) == keys[:2], "a longer prompt keeps the keys of its prefix"
    assert chain(tokens, chunk_tokens=step, extras={}) == keys
    other = chain(tokens, chunk_tokens=step, extras={at: extra})
    assert other[:at] == keys[:at]
    assert all((one == two) is (extra == b"") for one, two in zip(other[at:], keys[at:], strict=True))


def test_a_changed_token_changes_every_key_from_its_chunk_on() -> None:
    changed = [*TOKENS]
    changed[4] = 99
    one, two = chain(TOKENS, chunk_tokens=2), chain(changed, chunk_tokens=2)
    assert [a == b for a, b in zip(one, two, strict=True)] == [True, True, False, False, False]


def test_tokens_and_extras_cannot_be_shifted_into_each_other() -> None:
    root = root_key("")
    assert next_key(root, b"abcd", b"efgh") != next_key(root, b"abcdefgh", b"")
    assert next_key(root, b"", b"abcd") != next_key(root, b"abcd", b"")


def test_keys_of_another_chunk_size_are_other_keys() -> None:
    assert not set(chain(TOKENS, chunk_tokens=2)) & set(chain(TOKENS, chunk_tokens=4))


@pytest.mark.parametrize("tokens", [[-1], [2**32], ["1"], [1.5], [None], [1, 2, 2**40]])
def test_tokens_that_cannot_be_raise_token_errors(tokens: list[object]) -> None:
    with pytest.raises(TokenError, match="0 to 4294967295"):
        token_bytes(tokens)  # type: ignore[arg-type]
    with pytest.raises(TokenError):
        chain(tokens, chunk_tokens=1)  # type: ignore[arg-type]


def test_a_chunk_size_below_one_and_a_bad_salt_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        chain(TOKENS, chunk_tokens=0)
    with refused(Code.BAD_SALT):
        chain(TOKENS, "a/b")
