"""From logits to a distribution to a token. Pure: the randomness comes in as a number.

A token is drawn by inverting the cumulative distribution at a uniform number that belongs to its
position in the text. So the draw at a position does not depend on how many tokens were verified
together, and a seed gives the same text with speculation as without.

Shapes: R rows, V vocabulary, N blocks of B tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from draftwing.core.errors import UserError

# A vocabulary is searched in two levels: by blocks of this many tokens, then inside one.
BLOCK = 256


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. Filters apply in this order: temperature, top-k, top-p, min-p; temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        usable = self.temperature == 0 or 0.01 <= self.temperature <= 100
        checks = (
            (usable, "temperature", self.temperature, "0 (greedy), or 0.01 to 100"),
            (self.top_k >= 0, "top-k", self.top_k, "0 (off) or more"),
            (0 < self.top_p <= 1, "top-p", self.top_p, "above 0 and at most 1"),
            (0 <= self.min_p <= 1, "min-p", self.min_p, "between 0 and 1"),
        )
        for good, name, value, range_ in checks:
            if not good:
                raise UserError(f"{name} is {value}.", f"It must be {range_}.")

    @property
    def greedy(self) -> bool:
        """True when the largest logit always wins."""
        return self.temperature == 0

    @property
    def filtered(self) -> bool:
        """True when some tokens are ruled out."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


def distribution(logits_RV: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities [R, V] in float64 after temperature and filters; each row sums to 1."""
    logits = logits_RV.double() / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    probabilities = logits.softmax(-1)
    if sampling.top_p < 1:
        sorted_, order = probabilities.sort(dim=-1, descending=True, stable=True)
        # The token that crosses the bound is kept: what stands before it must be short of top_p.
        kept = sorted_.cumsum(-1) - sorted_ < sampling.top_p
        probabilities = torch.zeros_like(probabilities).scatter(-1, order, sorted_ * kept)
    if sampling.min_p > 0:
        floor = sampling.min_p * probabilities.amax(-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < floor, 0.0)
    return probabilities / probabilities.sum(-1, keepdim=True)


def choose(logits_RV: Tensor, sampling: Sampling, uniforms_R: Tensor | None) -> Tensor:
    """Token ids [R]: the argmax when greedy, else the inverse cumulative distribution at each row's uniform."""
    if sampling.greedy:
        return argmax(logits_RV)
    assert uniforms_R is not None
    if sampling.filtered:
        return choose_reference(logits_RV, sampling, uniforms_R)
    return _inverse_cumulative((logits_RV.float() / sampling.temperature).softmax(-1), uniforms_R)


def choose_reference(logits_RV: Tensor, sampling: Sampling, uniforms_R: Tensor) -> Tensor:
    """Token ids [R] by the definition: one cumulative sum over the whole vocabulary, in float64."""
    cumulative = distribution(logits_RV, sampling).cumsum(-1)
    # Scaling by the last entry keeps a uniform near 1 inside the support whatever the sum rounded to.
    at = uniforms_R.double()[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, at, right=True)[:, 0].clamp_max(logits_RV.shape[-1] - 1)


def argmax(logits_RV: Tensor) -> Tensor:
    """Index of each row's first largest entry [R]: torch's own, several times quicker over a vocabulary.

    The largest of each block comes from a vectorised pass; only one block a row is searched.
    """
    wide_RV = _whole_blocks(logits_RV, float("-inf"))
    blocks_RNB = wide_RV.unflatten(-1, (-1, BLOCK))
    block_R = blocks_RNB.amax(-1).argmax(-1)
    best_R: Tensor = block_R * BLOCK + _rows_of(blocks_RNB, block_R).argmax(-1)
    return best_R


def _inverse_cumulative(weights_RV: Tensor, uniforms_R: Tensor) -> Tensor:
    """The first index whose cumulative weight exceeds uniform x total: first the block, then inside it."""
    blocks_RNB = _whole_blocks(weights_RV, 0.0).unflatten(-1, (-1, BLOCK))
    sums_RN = blocks_RNB.sum(-1).double()
    cumulative_RN = sums_RN.cumsum(-1)
    at_R1 = uniforms_R.double()[:, None] * cumulative_RN[:, -1:]
    # A block without weight is never the first to exceed; rounding can not lead past the last block with any.
    last_R1 = (sums_RN > 0).long().cumsum(-1).argmax(-1, keepdim=True)
    block_R1 = torch.minimum(torch.searchsorted(cumulative_RN, at_R1, right=True), last_R1)
    inside_R1 = at_R1 - (cumulative_RN - sums_RN).gather(1, block_R1)
    row_RB = _rows_of(blocks_RNB, block_R1[:, 0]).double()
    # The same inside: an entry without weight is never chosen, whatever the two sums rounded to.
    last_R1 = (row_RB > 0).long().cumsum(-1).argmax(-1, keepdim=True)
    within_R1 = torch.minimum(torch.searchsorted(row_RB.cumsum(-1), inside_R1.clamp_min(0), right=True), last_R1)
    return (block_R1 * BLOCK + within_R1)[:, 0]


def _whole_blocks(x_RV: Tensor, fill: float) -> Tensor:
    """Padded at the end to a multiple of BLOCK; the same tensor when it is one already."""
    short = -x_RV.shape[-1] % BLOCK
    return F.pad(x_RV, (0, short), value=fill) if short else x_RV


def _rows_of(blocks_RNB: Tensor, block_R: Tensor) -> Tensor:
    row_RB: Tensor = blocks_RNB[torch.arange(len(block_R), device=block_R.device), block_R]
    return row_RB


def uniforms(seed: int, count: int) -> Tensor:
    """The first `count` uniform numbers of a seed, in float64: entry i belongs to the i-th new token of an answer."""
    # Not torch's generator: it reads the low 32 bits of a seed only.
    return torch.from_numpy(np.random.default_rng(seed % 2**64).random(count))
