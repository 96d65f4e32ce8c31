"""Join tokens, endpoints and labels as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.base.labels import MAX_LABELS, fault, matches
from dataplane.protocol.join import (
    TOKEN_PREFIX,
    BadToken,
    JoinToken,
    host_of,
    is_loopback,
    parse_token,
    token_text,
    url_fault,
    with_host,
)

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
TOKEN = JoinToken("abc", bytes(range(32)), KEY, ["tcp://10.0.0.1:8471", "tcp://larder.example:8471"])


def test_a_token_is_one_printable_word_that_is_read_back() -> None:
    text = token_text(TOKEN)
    assert text.startswith(TOKEN_PREFIX)
    assert text.isascii()
    assert len(text.split()) == 1
    assert parse_token(f"  {text}\n") == TOKEN


def test_a_token_does_not_show_its_secret_where_it_is_printed() -> None:
    assert repr(TOKEN) == "JoinToken('abc')"


@given(st.integers(min_value=0), st.sampled_from("AZaz09-_.!"))
def test_a_token_with_a_wrong_character_is_refused_as_a_token(at: int, wrong: str) -> None:
    text = token_text(TOKEN)
    at %= len(text)
    if text[at] == wrong:
        return
    changed = text[:at] + wrong + text[at + 1 :]
    try:
        read = parse_token(changed)
    except BadToken as error:
        message = str(error)
    else:
        message = ""
        assert read == TOKEN, "only bits behind the last byte may differ"
    assert changed not in message


@given(st.text())
def test_any_other_text_is_refused_as_a_token(text: str) -> None:
    with pytest.raises(BadToken):
        parse_token(TOKEN_PREFIX + text)


@pytest.mark.parametrize(
    "token",
    [
        JoinToken("abc", bytes(31), KEY, TOKEN.addresses),
        JoinToken("abc", bytes(32), "short", TOKEN.addresses),
        JoinToken("abc", bytes(32), KEY, []),
        JoinToken("abc", bytes(32), KEY, ["http://x:1"]),
        JoinToken("abc", bytes(32), KEY, ["tcp://0.0.0.0:1"]),
    ],
)
def test_a_token_with_a_part_that_cannot_be_is_refused(token: JoinToken) -> None:
    with pytest.raises(BadToken):
        parse_token(token_text(token))


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("tcp://10.0.0.1:8472", True),
        ("tcp://node-1.example:8472", True),
        ("tcp://[fe80::1%eth0]:8472", True),
        ("tcp://0.0.0.0:8472", True),
        ("ipc:///run/larder/control.sock", True),
        ("ipc://relative", False),
        ("tcp://10.0.0.1:0", False),
        ("tcp://10.0.0.1:70000", False),
        ("tcp://10.0.0.1:*", False),
        ("tcp://10.0.0.1", False),
        ("tcp://a b:1", False),
        ("tcp://eth0;10.0.0.1:1", False),
        ("inproc://x", False),
        ("", False),
        ("tcp://" + "a" * 600 + ":1", False),
    ],
)
def test_an_endpoint_is_checked(url: str, good: bool) -> None:
    assert (url_fault(url) == "") is good


def test_the_host_of_an_endpoint_can_be_replaced() -> None:
    assert with_host("tcp://0.0.0.0:8472", "10.0.0.7") == "tcp://10.0.0.7:8472"
    assert with_host("ipc:///x", "10.0.0.7") == "ipc:///x"
    assert host_of("tcp://[::1]:5") == "[::1]"


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.1.2.3:1", True),
        ("tcp://[::1]:1", True),
        ("tcp://localhost:1", True),
        ("ipc:///x", True),
        ("tcp://127.0.0.1.example:1", False),
        ("tcp://10.0.0.1:1", False),
        ("tcp://*:1", False),
        ("tcp://127.1:1", True),
        ("tcp://0x7f000001:1", True),
        ("tcp://[::ffff:127.0.0.1]:1", True),
        ("tcp://0:1", False),
        ("tcp://0x0:1", False),
        ("tcp://134744072:1", False),
    ],
)
def test_local_addresses_are_recognised(url: str, local: bool) -> None:
    assert is_loopback(url) is local


@pytest.mark.parametrize(
    ("labels", "good"),
    [
        ({"gpu": "h200", "zone": "a"}, True),
        ({"larder.example/Tier_1": ""}, True),
        ({"a": "x" * 63}, True),
        ({"a": "x" * 64}, False),
        ({"x" * 64: ""}, False),
        ({"": "a"}, False),
        ({"-a": "b"}, False),
        ({"a": "b-"}, False),
        ({"a": "b c"}, False),
        ({"a": "ü"}, False),
        ({"a": "b\n"}, False),
        ({"Up.example/a": "b"}, False),
        ({"a/b/c": "d"}, False),
        ({"/a": "d"}, False),
        ({f"k{number}": "" for number in range(MAX_LABELS)}, True),
        ({f"k{number}": "" for number in range(MAX_LABELS + 1)}, False),
    ],
)
def test_labels_are_written_as_in_kubernetes(labels: dict[str, str], good: bool) -> None:
    assert (fault(labels) == "") is good


def test_a_selector_matches_nodes_that_have_all_of_its_labels() -> None:
    assert matches({}, None)
    assert matches({"a": "1"}, {})
    assert matches({"a": "1", "b": "2"}, {"a": "1"})
    assert not matches({"a": "1"}, {"a": "2"})
    assert not matches({}, {"a": ""})
