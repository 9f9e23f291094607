"""Intervals: their coverage, their pairing, their edges."""

from __future__ import annotations

import numpy as np
import pytest

from draftwing.core.statistics import median, ratio_of_sums


def test_the_interval_of_a_median_covers_the_truth_about_95_times_of_100() -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for seed in range(200):
        interval = median(list(generator.lognormal(0.0, 0.5, 41)), seed)
        hits += interval.low <= 1.0 <= interval.high
    # Binomial with p = .95: 180 to 198 holds in 999 of 1000 runs.
    assert 180 <= hits <= 198


def test_a_ratio_resamples_pairs_together() -> None:
    """When every pair has the same ratio, the ratio is certain, however much the parts vary."""
    below = [1.0, 5.0, 20.0, 3.0, 9.0]
    interval = ratio_of_sums([2 * value for value in below], below)
    assert (interval.low, interval.estimate, interval.high) == pytest.approx((2.0, 2.0, 2.0))


def test_a_ratio_weighs_by_size() -> None:
    assert ratio_of_sums([1.0, 30.0], [1.0, 10.0]).estimate == pytest.approx(31 / 11)


@pytest.mark.parametrize("values", [[3.0], [3.0, 3.0, 3.0]])
def test_no_spread_is_no_error(values: list[float]) -> None:
    interval = median(values)
    assert (interval.low, interval.estimate, interval.high) == (3.0, 3.0, 3.0)
