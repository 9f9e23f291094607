"""t(m) / t(1) is taken within rounds, over forwards that all start from the same context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftwing.engine.cost import WARM_UP, verify_seconds
from draftwing.measure.verify_cost import costs, figures
from draftwing.target.load import load_target
from tests.tiny import save_tiny


def test_ratios_are_taken_within_rounds() -> None:
    """The second round ran at half speed: both of its times double, and the ratio is none the wiser."""
    rows = costs({1: [0.010, 0.020, 0.010], 4: [0.015, 0.030, 0.015]})
    assert [(row.tokens, row.ratio.estimate, row.ratio.low, row.ratio.high) for row in rows] == [
        (1, 1.0, 1.0, 1.0),
        (4, 1.5, 1.5, 1.5),
    ]
    assert [row.ms.estimate for row in rows] == pytest.approx([10.0, 15.0])
    with pytest.raises(ValueError, match="needs t\\(1\\)"):
        costs({2: [0.1]})


def test_the_floor_is_weights_over_bandwidth() -> None:
    rows = costs({1: [0.010]})
    summary = figures(rows, weight_bytes=200, bytes_per_second=40_000)
    assert summary["floor_ms"] == pytest.approx(5.0)
    assert summary["times_floor"] == pytest.approx(2.0)
    assert figures(rows, 200, None)["times_floor"] is None


def test_every_size_is_verified_after_the_same_context_once_a_round(tmp_path: Path) -> None:
    target = load_target(str(save_tiny(tmp_path)), "float32", "cpu")
    backend = target.decoder(1, 20)
    seen: list[tuple[int, int]] = []
    forward = backend.forward

    def watched(tokens: Any, *arguments: Any, **options: Any) -> Any:
        seen.append((backend.cache.lengths[0], tokens.shape[1]))
        return forward(tokens, *arguments, **options)

    backend.forward = watched  # type: ignore[method-assign]
    rounds: list[int] = []
    taken = verify_seconds(backend, list(range(20)), [1, 2, 8], (2, 4), 3, rounds.append)
    assert {size: len(seconds) for size, seconds in taken.items()} == {1: 3, 2: 3, 8: 3}
    assert min(second for seconds in taken.values() for second in seconds) > 0
    assert rounds == [1, 1, 1]
    assert seen[0] == (0, 12), "the context, once"
    later = seen[1:]
    assert len(later) == 3 * (WARM_UP + 3)
    for start in range(0, len(later), 3):
        assert sorted(later[start : start + 3]) == [(12, 1), (12, 2), (12, 8)]
    with pytest.raises(ValueError, match="leave no context"):
        verify_seconds(backend, list(range(8)), [1, 8], (), 1)


def test_the_weights_read_are_all_matrices(tmp_path: Path) -> None:
    target = load_target(str(save_tiny(tmp_path)), "float32", "cpu")
    config, width = target.config, target.config.hidden_size
    heads = (config.heads + 2 * config.kv_heads) * config.head_dim
    layer = width * (heads + config.heads * config.head_dim + 3 * config.intermediate_size)
    assert target.weights.read_bytes == 4 * (config.layers * layer + config.vocab_size * width)
