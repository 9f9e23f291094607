"""Medians and means with intervals. Pure: numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % bootstrap interval; low and high equal the estimate when there is one number only."""

    estimate: float
    low: float
    high: float


def _bootstrap(samples: tuple[Any, ...], statistic: Any, seed: int) -> Interval:
    estimate = float(statistic(*samples, axis=-1))
    if len(samples[0]) < 2 or all(np.ptp(sample) == 0 for sample in samples):
        return Interval(estimate, estimate, estimate)
    result = stats.bootstrap(
        samples,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=4000,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return Interval(estimate, float(result.confidence_interval.low), float(result.confidence_interval.high))


def median(values: Sequence[float], seed: int = 0) -> Interval:
    """Median over units (prompts), with a percentile bootstrap interval."""
    return _bootstrap((np.asarray(values, float),), np.median, seed)


def ratio_of_sums(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Interval:
    """sum(above) / sum(below) over paired units, resampled together; e.g. tokens over seconds, tokens over cycles."""
    return _bootstrap((np.asarray(above, float), np.asarray(below, float)), _ratio, seed)


def _ratio(above: Any, below: Any, axis: int = -1) -> Any:
    return above.sum(axis) / below.sum(axis)
