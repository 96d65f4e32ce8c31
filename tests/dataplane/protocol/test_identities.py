"""Spaces, salts, sizes: what is equal, what is refused, and what people see."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.base.units import format_exact_size, format_size, parse_size
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.salts import check_salt, salt_of, shown
from dataplane.protocol.spaces import Space, check_space

BASE = Space("llama", "r1", "NHD", "bf16", 1, 4, 1, 2, 4096)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "llama2"},
        {"revision": "r2"},
        {"layout": "HND"},
        {"dtype": "fp8"},
        {"kv_group": 0},
        {"world_size": 8},
        {"pipeline_stage": 0},
        {"rank": 3},
        {"gateway": "lmcache"},
    ],
)
def test_every_field_but_the_block_size_makes_another_space(change: dict[str, object]) -> None:
    assert msgspec.structs.replace(BASE, **change).identity() != BASE.identity()


def test_the_block_size_is_not_identity_and_fields_do_not_run_together() -> None:
    assert msgspec.structs.replace(BASE, block_bytes=8192).identity() == BASE.identity()
    assert Space("a", "bc").identity() != Space("ab", "c").identity()
    assert Space("a", "", "b").identity() != Space("a", "b", "").identity()
    assert len(BASE.identity()) == 32


def test_identities_are_stable() -> None:
    assert Space("llama").identity() == "9b3208f5eeb29862d6a22d241ac8bb87"
    assert BASE.identity() == "d4b1b185c26ea7fd2b2be9f151dac18d"
    assert Space("llama", gateway="lmcache").identity() == "2fb20317928ce19d0d3a4079cbf88648"


def test_a_space_of_no_gateway_is_sent_as_it_ever_was() -> None:
    assert msgspec.msgpack.encode(Space("llama", rank=1, world_size=2)) == msgspec.msgpack.encode(
        {"model": "llama", "world_size": 2, "rank": 1}
    )


def test_a_gateway_that_does_not_exist_is_named() -> None:
    error = refused(check_space, Space("llama", gateway="other"), "spaces[0].space")
    assert (error.code, error.field) == (Code.BAD_SPACE, "spaces[0].space.gateway")
    assert "'lmcache'" in error.message


def test_a_right_space_passes_unchanged() -> None:
    assert check_space(BASE) is BASE


def refused(call, *arguments: object) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        call(*arguments)
    return caught.value


def test_a_wrong_space_names_the_field_at_fault() -> None:
    error = refused(check_space, msgspec.structs.replace(BASE, rank=4), "spaces[3].space")
    assert (error.code, error.field) == (Code.BAD_SPACE, "spaces[3].space.rank")
    assert "0 to 3" in error.message


@pytest.mark.parametrize("salt", ["", "a", "x" * 128, "größe", "with space", "日本", "a:b;c#d%e", "_", "__default"])
def test_good_salts_are_taken_as_they_are(salt: str) -> None:
    assert check_salt(salt) == salt
    assert salt_of(shown(salt)) == salt


@pytest.mark.parametrize(
    ("salt", "message"),
    [
        ("a@b", "'@'"),
        ("a/b", "'/'"),
        ("a\\b", r"\\"),
        ("\n", r"\n"),
        ("\x00", "control"),
        ("\x85", "control"),
        ("\ud800", "control"),
        ("x" * 129, "129"),
        ("_default", "_default"),
        (7, "int"),
        (None, "NoneType"),
        (b"bytes", "bytes"),
    ],
)
def test_bad_salts_are_refused_with_the_reason(salt: object, message: str) -> None:
    error = refused(check_salt, salt, "tenant")
    assert (error.code, error.field) == (Code.BAD_SALT, "tenant")
    assert message in error.message


def test_the_empty_salt_is_shown_as_default() -> None:
    assert shown("") == "_default"
    assert salt_of("_default") == ""
    assert refused(salt_of, "a/b").code is Code.BAD_SALT


@given(salt=st.text(max_size=140))
def test_any_text_is_a_salt_or_a_refusal(salt: str) -> None:
    try:
        assert check_salt(salt) == salt
    except ProtocolError as error:
        assert error.code is Code.BAD_SALT  # noqa: PT017 (either is right)
    else:
        assert salt.encode().decode() == salt


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("4GiB", 4 << 30),
        ("4 gib", 4 << 30),
        ("4Gi", 4 << 30),
        ("1.5MiB", 3 << 19),
        ("500MB", 500_000_000),
        ("500 m", 500_000_000),
        ("2k", 2000),
        ("1TiB", 1 << 40),
        (" 7b ", 7),
        ("0", 0),
        ("1048576TiB", 1 << 60),
    ],
)
def test_sizes_as_people_write_them(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "4 GiBs",
        "-1",
        "-4GiB",
        "1e3",
        "0x10",
        "4,5GiB",
        "٤",
        True,
        None,
        1.5,
        -1,
        (1 << 60) + 1,
        "2EiB",
        "9" * 400 + ".0GiB",
        "9" * 5000,
    ],
)
def test_an_invalid_size_is_refused_with_the_expected_form(text: object) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1000 << 10, "1,000 KiB"),
        (1000 << 20, "1,000 MiB"),
        (1023 << 30, "1,023 GiB"),
        ((1 << 20) - 1, "1 MiB"),
        (1610612736, "1.5 GiB"),
        (102_349_000_000, "95.3 GiB"),
        (999 << 40, "999 TiB"),
        (1 << 50, "1 PiB"),
        (1 << 60, "1 EiB"),
        (5000 << 60, "5,000 EiB"),
        (0.25, "0 B"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_sizes_as_people_read_them(size: float, text: str) -> None:
    assert format_size(size) == text


def test_whole_sizes_of_every_unit_read_back_as_they_were() -> None:
    for power, count in product(range(7), (1, 7, 99, 100, 999, 1000, 1001, 1010, 1023)):
        size = min(count << 10 * power, 1 << 60)
        assert parse_size(format_size(size)) == size
        assert parse_size(format_exact_size(size).removesuffix("ytes")) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (1000 << 20, "1000 MiB"),
        (1280 << 20, "1.25 GiB"),
        ((1 << 30) + 1, "1073741825 bytes"),
        ((1 << 60) - 1, "1152921504606846975 bytes"),
    ],
)
def test_exact_sizes_hide_no_byte(size: int, text: str) -> None:
    assert format_exact_size(size) == text
