"""Sampling: filters against a plain implementation, draws against their distribution, edges of each knob.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.ops.sampling import BLOCK, Sampling, argmax, choose, choose_reference, distribution, uniforms

LAST_BELOW_1 = 1 - 2.0**-53


def _plain(logits: list[float], sampling: Sampling) -> list[float]:
    """One row by the words of `Sampling`: temperature, top-k, top-p, min-p, each on plain lists."""
    scaled = [logit / sampling.temperature for logit in logits]
    kept = set(range(len(logits)))
    if sampling.top_k:
        least = sorted(scaled, reverse=True)[min(sampling.top_k, len(scaled)) - 1]
        kept = {token for token in kept if scaled[token] >= least}
    weights = {token: math.exp(scaled[token] - max(scaled)) for token in kept}
    total = sum(weights.values())
    probability = {token: weight / total for token, weight in weights.items()}
    nucleus, mass = [], 0.0
    for token in sorted(probability, key=lambda token: (-probability[token], token)):
        if mass >= sampling.top_p:
            break
        nucleus.append(token)
        mass += probability[token]
    floor = sampling.min_p * max(probability.values())
    final = {token: probability[token] for token in nucleus if probability[token] >= floor}
    return [final.get(token, 0.0) / sum(final.values()) for token in range(len(logits))]


SETTINGS = {
    "plain": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 3.0},
    "top-k": {"top_k": 5},
    "top-k 1": {"top_k": 1},
    "top-k of all": {"top_k": 40},
    "top-k above V": {"top_k": 1000},
    "top-p": {"top_p": 0.7},
    "top-p of one token": {"top_p": 1e-9},
    "top-p almost 1": {"top_p": 0.999999},
    "min-p": {"min_p": 0.2},
    "min-p 1": {"min_p": 1.0},
    "all": {"temperature": 1.4, "top_k": 12, "top_p": 0.8, "min_p": 0.1},
    "top-k binds": {"temperature": 2.0, "top_k": 3, "top_p": 0.99},
}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS.keys())
def test_distribution_equals_a_plain_implementation(changes: dict[str, Any]) -> None:
    sampling = Sampling(**{"temperature": 1.0, **changes})
    logits = 2 * torch.randn(6, 40, generator=torch.Generator().manual_seed(3))
    ours = distribution(logits, sampling)
    assert ours.dtype == torch.float64
    plain = torch.tensor([_plain(row, sampling) for row in logits.double().tolist()], dtype=torch.float64)
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-12)
    assert torch.equal(ours > 0, plain > 0)
    torch.testing.assert_close(ours.sum(-1), torch.ones(6, dtype=torch.float64))


def test_settings_change_the_distribution() -> None:
    """Every knob of the table does something, so that a knob that is ignored would be caught."""
    logits = 2 * torch.randn(1, 40, generator=torch.Generator().manual_seed(3))
    seen = {tuple(distribution(logits, Sampling(**{"temperature": 1.0, **c}))[0].tolist()) for c in SETTINGS.values()}
    # Equal: plain, top-k 40 and above V and (here) top-p almost 1; top-k 1, tiny top-p and min-p 1.
    assert len(seen) >= len(SETTINGS) - 5


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    sampling = Sampling(temperature=0.8, top_k=7, top_p=0.9, min_p=0.05)
    logits = 3 * torch.randn(5, 30, generator=torch.Generator().manual_seed(4))
    together = distribution(logits, sampling)
    for row in range(5):
        torch.testing.assert_close(distribution(logits[row : row + 1], sampling)[0], together[row])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"top_k": 2}, [1 / 3, 1 / 3, 1 / 3, 0.0]),
        ({"min_p": 1.0}, [1 / 3, 1 / 3, 1 / 3, 0.0]),
        ({"top_p": 0.4}, [0.5, 0.5, 0.0, 0.0]),
    ],
    ids=["top-k", "min-p", "top-p"],
)
def test_ties(changes: dict[str, Any], expected: list[float]) -> None:
    """Top-k and min-p keep all that tie with the last kept; top-p fills up from the lowest id."""
    out = distribution(torch.tensor([[2.0, 2.0, 2.0, 0.0]]), Sampling(temperature=1.0, **changes))
    torch.testing.assert_close(out[0], torch.tensor(expected, dtype=torch.float64))


def test_a_nucleus_cut_among_many_ties_keeps_the_lowest_ids() -> None:
    """Sorting must be stable: else which of 1000 equals are kept changes with the machine."""
    out = distribution(torch.zeros(1, 1000), Sampling(temperature=1.0, top_p=0.2505))
    assert out[0].nonzero()[:, 0].tolist() == list(range(251))


def test_banned_tokens_are_never_drawn() -> None:
    """Logits of -inf stay at probability 0 under every uniform number."""
    logits = torch.tensor([[float("-inf"), 0.3, float("-inf"), 0.1, float("-inf")]]).expand(1002, -1)
    u = torch.cat([torch.linspace(0, LAST_BELOW_1, 1001, dtype=torch.float64), torch.tensor([0.0])])
    assert set(choose(logits, Sampling(temperature=1.0), u).tolist()) == {1, 3}


@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (0.2499, 1), (0.2501, 3), (0.999, 3), (LAST_BELOW_1, 3)])
def test_the_draw_inverts_the_cumulative_distribution(u: float, token: int) -> None:
    """p = (0, 1/4, 0, 3/4, 0): u below 1/4 is token 1, the rest token 3; neither end falls on a token of weight 0."""
    logits = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]]).log()
    assert choose(logits, Sampling(temperature=1.0), torch.tensor([u], dtype=torch.float64)).tolist() == [token]


@pytest.mark.parametrize("u", [0.0, 0.5, LAST_BELOW_1])
def test_draws_at_the_ends_stay_inside_the_support(u: float) -> None:
    """Large rows whose sum rounds away from 1, first and last tokens filtered out."""
    logits = torch.randn(50, 5000, generator=torch.Generator().manual_seed(6))
    sampling = Sampling(temperature=1.0, top_k=300)
    drawn = choose(logits, sampling, torch.full((50,), u, dtype=torch.float64))
    assert bool((distribution(logits, sampling)[torch.arange(50), drawn] > 0).all())


@pytest.mark.parametrize(
    ("probabilities", "changes"),
    [
        ([0.51, 0.49], {}),
        ([0.4, 0.3, 0.2, 0.06, 0.04], {}),
        ([0.4, 0.3, 0.2, 0.06, 0.04], {"temperature": 0.7, "top_k": 4, "min_p": 0.12}),
        ([0.05] * 20, {"top_p": 0.52}),
    ],
    ids=["near-tie", "five", "filtered", "flat"],
)
def test_draws_follow_the_distribution(probabilities: list[float], changes: dict[str, Any]) -> None:
    """Chi-square over 100,000 draws of a fixed seed; a right implementation fails one seed in 1000 per case.

    A fair coin in place of the near tie is expected at chi-square 40, p = 3e-10.
    """
    count, sampling = 100_000, Sampling(**{"temperature": 1.0, **changes})
    logits = torch.tensor([probabilities], dtype=torch.float64).log()
    expected = distribution(logits, sampling)[0]
    drawn = choose(logits.expand(count, -1), sampling, uniforms(7, count))
    counts = torch.bincount(drawn, minlength=len(probabilities))
    support = expected > 0
    assert int(counts[~support].sum()) == 0
    assert stats.chisquare(counts[support].numpy(), (expected[support] * count).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_takes_the_largest_logit_and_needs_no_uniforms(dtype: torch.dtype) -> None:
    logits = torch.randn(9, 40, generator=torch.Generator().manual_seed(8)).to(dtype)
    assert Sampling().greedy
    assert not Sampling(temperature=0.1).greedy
    assert torch.equal(choose(logits, Sampling(), None), logits.argmax(-1))


def test_uniforms_belong_to_seed_and_place() -> None:
    """A longer row begins with the shorter; other seeds give other numbers; all lie in [0, 1)."""
    long: Tensor = uniforms(11, 1000)
    assert torch.equal(uniforms(11, 10), long[:10])
    assert not torch.equal(uniforms(12, 10), long[:10])
    assert long.dtype == torch.float64
    assert 0 <= float(long.min()) <= float(long.max()) < 1
    assert stats.kstest(long.numpy(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("seed", [2**32, 2**33 + 5, 2**63])
def test_all_of_a_seed_counts(seed: int) -> None:
    """Regeneration adds a 62-bit number to the seed: two prompts must not share their draws."""
    assert not torch.equal(uniforms(seed, 5), uniforms(seed % 2**32, 5))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": -0.1}, r"temperature is -0.1\. It must be 0 \(greedy\)"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top-k is -1"),
        ({"top_p": 0.0}, r"top-p is 0\.0\. It must be above 0 and at most 1"),
        ({"top_p": 1.1}, "top-p is 1.1"),
        ({"min_p": -0.5}, "min-p is -0.5"),
        ({"min_p": 1.5}, r"min-p is 1\.5\. It must be between 0 and 1"),
    ],
)
def test_a_value_out_of_range_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Sampling(**changes)


@pytest.mark.parametrize("width", [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_the_draw_in_two_levels_is_that_of_the_definition(width: int) -> None:
    """Unfiltered draws, 400 rows each, some entries ruled out, uniforms at both ends among them."""
    generator = torch.Generator().manual_seed(width)
    logits = 4 * torch.randn(400, width, generator=generator)
    logits[:, 1::3] = float("-inf")
    draws = torch.rand(400, dtype=torch.float64, generator=generator)
    draws[:2] = torch.tensor([0.0, LAST_BELOW_1])
    sampling = Sampling(0.8)
    chosen = choose(logits, sampling, draws)
    # At the very ends the rounding of the two sums may decide; inside, no draw here lies that near a boundary.
    assert torch.equal(chosen[2:], choose_reference(logits, sampling, draws)[2:])
    assert logits.gather(1, chosen[:, None]).isfinite().all()


@pytest.mark.parametrize("u", [0.0, 0.3, LAST_BELOW_1])
@pytest.mark.parametrize("only", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 3])
def test_the_only_possible_token_is_drawn_wherever_it_stands(only: int, u: float) -> None:
    logits = torch.full((1, 2 * BLOCK + 9), float("-inf"))
    logits[0, only] = 0.0
    assert choose(logits, Sampling(1.0), torch.tensor([u], dtype=torch.float64)).tolist() == [only]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
def test_argmax_is_the_first_largest_and_finds_nan(width: int, dtype: torch.dtype) -> None:
    logits = torch.randn(50, width, generator=torch.Generator().manual_seed(width)).to(dtype)
    first = [row.index(max(row)) for row in logits.tolist()]
    assert argmax(logits).tolist() == first
    for place in {0, width // 2, width - 1}:
        broken = logits.clone()
        broken[7, place] = float("nan")
        assert argmax(broken)[7] == place
    assert argmax(torch.full((2, width), float("-inf"), dtype=dtype)).tolist() == [0, 0]
