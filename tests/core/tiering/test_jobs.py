"""The states of jobs."""

from __future__ import annotations

from itertools import product

import pytest

from dataplane.core.tiering.jobs import NEXT, IllegalTransition, JobReason, JobState, TierJob


@pytest.mark.parametrize(("state", "following"), list(product(JobState, JobState)))
def test_a_job_goes_to_the_states_of_the_table_and_to_no_other(state: JobState, following: JobState) -> None:
    job = TierJob(JobReason.MOVE, None, None, [], state=state)
    if following in NEXT[state]:
        job.to(following)
        assert job.state is following
    else:
        with pytest.raises(IllegalTransition, match=f"{state.name} to {following.name}"):
            job.to(following)
        assert job.state is state


def test_every_state_leads_to_the_end() -> None:
    assert NEXT.keys() == set(JobState)
    reached = {JobState.ENDED}
    for _ in JobState:
        reached |= {state for state, following in NEXT.items() if following & reached}
    assert reached == set(JobState)
