"""t(m) / t(1): how much dearer a verify of m tokens is than one of one token. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from draftwing.core.statistics import Interval, median


@dataclass(frozen=True)
class SizeCost:
    """Milliseconds of a verify of `tokens` tokens, and its ratio to a verify of one, round by round."""

    tokens: int
    ms: Interval
    ratio: Interval


def costs(taken: dict[int, list[float]]) -> list[SizeCost]:
    """Summarise seconds by size. The ratio is the median over rounds of t(m) / t(1) within a round.

    Raises ValueError without size 1.
    """
    if 1 not in taken:
        raise ValueError("t(m) / t(1) needs t(1)")
    return [
        SizeCost(
            size,
            median([1e3 * second for second in seconds]),
            median([mine / one for mine, one in zip(seconds, taken[1], strict=True)]),
        )
        for size, seconds in sorted(taken.items())
    ]


def figures(rows: list[SizeCost], weight_bytes: int, bytes_per_second: float | None) -> dict[str, Any]:
    """For a record: the rows, and the time in which the weights can be read once, below which no verify can be.

    The floor is None where nobody measured how fast memory is read.
    """
    floor_ms = 1e3 * weight_bytes / bytes_per_second if bytes_per_second else None
    return {
        "sizes": [asdict(row) for row in rows],
        "weight_bytes": weight_bytes,
        "floor_ms": floor_ms,
        "times_floor": rows[0].ms.estimate / floor_ms if floor_ms else None,
    }
