"""Shares of tenants, and keys of chains."""

from collections import Counter

import pytest

from dataplane.protocol.keys import next_key, root_key
from dataplane.protocol.layout import pack_keys
from dataplane.replay.chains import DerivedChains
from dataplane.replay.tenants import parse_shares


def test_requests_follow_the_weights():
    shares = parse_shares("a=3, b=1")
    counts = Counter(shares.of(number) for number in range(20_000))
    assert set(counts) == {"a", "b"}
    assert counts["a"] / 20_000 == pytest.approx(0.75, abs=0.02)


def test_a_request_always_belongs_to_the_same_tenant():
    one, other = parse_shares("a=0.5,b=0.5"), parse_shares("a=1,b=1")
    assert [one.of(number) for number in range(500)] == [other.of(number) for number in range(500)]


def test_the_default_tenant_is_named_by_its_shown_name():
    assert parse_shares("_default=1").of(7) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "NAME=WEIGHT"),
        ("a", "NAME=WEIGHT"),
        ("=1", "NAME=WEIGHT"),
        ("a=0.5,", "NAME=WEIGHT"),
        ("a=", "expected a number"),
        ("a=much", "expected a number"),
        ("a=0", "above 0"),
        ("a=-1", "above 0"),
        ("a=nan", "above 0"),
        ("a=inf,b=1", "above 0"),
        ("a=1,a=2", "named twice"),
        ("_default=1,_default=2", "named twice"),
        ("x/y=1", "not a tenant"),
    ],
)
def test_invalid_shares_are_refused(text, expected):
    with pytest.raises(ValueError, match=expected):
        parse_shares(text)


def test_keys_are_the_chain_of_the_ids():
    first = next_key(root_key("t"), (5).to_bytes(8, "little"))
    second = next_key(first, (2**62).to_bytes(8, "little"))
    assert (DerivedChains().keys("t", [5, 2**62]) == pack_keys([first, second])).all()


def test_chains_share_prefixes_and_nothing_else():
    chains = DerivedChains()
    one, other, foreign = (chains.keys("t", [1, 2, 3]), chains.keys("t", [1, 2, 4]), chains.keys("u", [1, 2, 3]))
    assert (one[:2] == other[:2]).all()
    assert (one[2] != other[2]).any()
    assert not (one[:, None] == foreign[None]).all(axis=2).any()
    assert (one == chains.keys("t", [1, 2, 3])).all()


def test_a_chain_without_blocks_has_no_keys():
    assert DerivedChains().keys("", []).shape == (0, 4)
