"""The longest prefix that every space can serve."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.protocol.layout import longest_prefix
from dataplane.protocol.spaces import Space, kinds_of


def flags(text: str) -> np.ndarray:
    return np.array([letter == "x" for letter in text], np.bool_)


@pytest.mark.parametrize(
    ("spaces", "expected"),
    [
        ([("xxxx", 0)], 4),
        ([("xx.x", 0)], 2),
        ([(".x.x", 1)], 4),
        ([("xxx.", 0), (".x..", 1)], 2),
        ([("xxx.", 0), ("...x", 1)], 0),
        ([(".x.x", 1), ("xxxx", 0)], 4),
        ([("xxxx", 0), (".x.x", 1), ("xxxx", 0), (".x..", 1)], 2),
        ([("xxxx", 0), ("x..x", 1), ("xxxx", 0), (".x.x", 1)], 4),
        ([("xxxx", 0), ("..xx", 2), ("x..x", 1)], 4),
        ([("xxxx", 0), (".x.x", 2)], 0),
        ([("xxxx", 0), ("x..x", 2)], 1),
        ([("", 0), ("", 1)], 0),
    ],
)
def test_a_prefix_needs_all_blocks_of_a_space_or_those_at_its_end(spaces: list[tuple[str, int]], expected: int) -> None:
    assert longest_prefix([flags(text) for text, _ in spaces], [tail for _, tail in spaces]) == expected


@given(
    st.integers(0, 9).flatmap(
        lambda count: st.lists(
            st.tuples(st.lists(st.booleans(), min_size=count, max_size=count), st.integers(0, 4)), min_size=1
        )
    )
)
def test_no_other_prefix_is_longer(spaces: list[tuple[list[bool], int]]) -> None:
    def serves(present: list[bool], tail: int, end: int) -> bool:
        return all(present[at] for at in Space("m", tail_blocks=tail).needed(end))

    longest = longest_prefix([np.array(present, np.bool_) for present, _ in spaces], [tail for _, tail in spaces])
    right = [end for end in range(len(spaces[0][0]) + 1) if all(serves(*space, end) for space in spaces)]
    assert longest == right[-1]


@pytest.mark.parametrize("tail", range(4))
def test_blocks_behind_a_gap_are_of_use_in_spaces_that_allow_gaps(tail: int) -> None:
    usable = longest_prefix([flags("x.xxx")], [tail])
    assert (usable > 1) is Space("m", tail_blocks=tail).allows_gaps


def test_an_engine_needs_no_chunk_of_spaces_that_lack_some() -> None:
    attention, state = Space("m", kv_group=0), Space("m", layout="state", kv_group=1, tail_blocks=1)
    assert kinds_of({"a": attention, "s": state}, ()) == kinds_of({"a": attention}, ()) == [[["a"]]]
    assert kinds_of({"s": state}, ()) == [[["s"]]], "a model without attention"
