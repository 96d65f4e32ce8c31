"""Documentation that is made from the code says what the code says."""

from __future__ import annotations

import pytest

from dataplane.protocol.codes import Code, ReserveOutcome, code_of
from docs.check_names import forbidden, wrong_names
from docs.generate import FILES, FOLDER, SECTIONS


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_made_file_is_current(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == FILES[name](), "run: python docs/generate.py"


def test_every_code_stands_in_one_section_and_has_a_text() -> None:
    for code in Code:
        assert sum(low <= code < high for low, high, _ in SECTIONS) == 1
        assert code.__doc__
        assert code.__doc__.endswith(".")


def test_codes_of_keys_fit_their_byte_and_never_look_like_an_outcome() -> None:
    outcomes = {int(outcome) for outcome in ReserveOutcome}
    assert all(0 < code < 254 and int(code) not in outcomes for code in Code)


def test_an_unknown_number_does_not_raise() -> None:
    assert code_of(9999) is Code.UNSUPPORTED
    assert all(code_of(int(code)) is code for code in Code)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("doomed_keys", True),
        ("Dooming", True),
        ("test_blocks_are_buried", True),
        ("hang_up", True),
        ("peersHangingUp", True),
        ("hangUp", True),
        ("_HANGS_UP", True),
        ("hang", False),
        ("up_hang", False),
        ("timestamps", False),
        ("MAX_WORLD_SIZE", False),
        ("worlds", True),
    ],
)
def test_names_with_a_replaced_term_are_found(name: str, found: bool) -> None:
    terms = forbidden(
        "## Names that are not used\n| not | but |\n|---|---|\n| doom, bury | dead |\n"
        "| hang up, stamp | close |\n| world (but `world_size`) | attachment |\n"
    )
    assert [name for _, name, _ in wrong_names([(1, name)], terms)] == [name] * found
