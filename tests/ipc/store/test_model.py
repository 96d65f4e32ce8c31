"""Every state of one writer and two readers that may be killed anywhere: no wrong byte is read, no memory is lost."""

import pytest

from tests.ipc.store.model import Model, Mutant, Violation
from tests.sizes import size

OBJECTS = size(full=3, usual=2)


def test_no_state_lets_a_reader_see_wrong_bytes_or_loses_the_memory() -> None:
    states, recoverable = Model(objects=OBJECTS).explore()
    assert recoverable
    assert states > 8_000


@pytest.mark.parametrize(
    "mutant", ["no barrier", "no second look", "publish first", "free unseen", "reclaim the living"]
)
def test_the_model_finds_a_mutant_that_shows_wrong_bytes(mutant: Mutant) -> None:
    with pytest.raises(Violation):
        Model(objects=2, mutant=mutant).explore()


@pytest.mark.parametrize("mutant", ["keep leases of the dead", "keep writes of the dead"])
def test_the_model_finds_a_mutant_that_loses_memory(mutant: Mutant) -> None:
    assert not Model(readers=1, objects=1, mutant=mutant).explore()[1]
