"""From logits to a distribution to a token. Pure: the randomness comes in as a number.

A token is drawn by inverting the cumulative distribution at a uniform number that belongs to its
position in the text. So the draw at a position does not depend on how many tokens were verified
together, and a seed gives the same text with speculation as without.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwing.core.errors import UserError


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
        return logits_RV.argmax(-1)
    assert uniforms_R is not None
    cumulative = distribution(logits_RV, sampling).cumsum(-1)
    # Scaling by the last entry keeps a uniform near 1 inside the support whatever the sum rounded to.
    at = uniforms_R.double()[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, at, right=True)[:, 0].clamp_max(logits_RV.shape[-1] - 1)


def uniforms(seed: int, count: int) -> Tensor:
    """The first `count` uniform numbers of a seed, in float64: entry i belongs to the i-th new token of an answer."""
    # Not torch's generator: it reads the low 32 bits of a seed only.
    return torch.from_numpy(np.random.default_rng(seed % 2**64).random(count))
