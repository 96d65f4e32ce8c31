"""The slope of samples after a warm-up, with its interval."""

import numpy as np
import pytest

from benchmarks.harness.drift import drift


def samples(
    per_hour: float, *, warm_up: float = 0.0, noise: float = 1.0, count: int = 360
) -> list[tuple[float, float]]:
    """Half an hour of samples that grow at a rate, after a rise in the first five minutes."""
    chance = np.random.default_rng(3)
    at = np.linspace(0, 1800, count)
    values = 100 + warm_up * np.minimum(at / 300, 1) + per_hour * at / 3600 + noise * chance.random(count)
    return list(zip(at.tolist(), values.tolist(), strict=True))


def test_what_a_process_takes_at_its_start_is_no_drift() -> None:
    found = drift(samples(0.0, warm_up=50.0))
    assert found is not None
    assert found.low < 0 < found.high


@pytest.mark.parametrize("per_hour", [5.0, 40.0])
def test_steady_growth_is_measured_within_its_interval(per_hour: float) -> None:
    found = drift(samples(per_hour, warm_up=50.0))
    assert found is not None
    assert 0 < found.low < found.per_hour < found.high
    assert found.per_hour == pytest.approx(per_hour, abs=2.0)
    assert found.high - found.low < 4


def test_peaks_of_what_comes_and_goes_do_not_count() -> None:
    flat = samples(0.0, noise=0.0)
    peaks = [(at, value + 500 * (number % 7 == 0) * at) for number, (at, value) in enumerate(flat)]
    found = drift(peaks)
    assert found is not None
    assert found.per_hour == pytest.approx(0.0)


@pytest.mark.parametrize("count", [0, 1, 24])
def test_too_few_samples_have_no_slope(count: int) -> None:
    assert drift(samples(1.0, count=count)) is None
