"""Where two greedy answers part, and how near the tie was."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftwing.target.backend import Backend


@dataclass(frozen=True)
class Divergence:
    """The first place where speculative and plain tokens differ.

    `gap` is the difference of the target's logits of the two tokens there, from one prefill of the plain text: in
    exact arithmetic the plain token leads by this much.
    """

    place: int
    plain_token: int
    speculative_token: int
    gap: float


def first_divergence(
    backend: Backend, prompt: tuple[int, ...], plain: list[int], speculative: list[int]
) -> Divergence | None:
    """Compare two answers to one prompt; None when they are the same."""
    if plain == speculative:
        return None
    pairs = enumerate(zip(plain, speculative, strict=False))
    place = next((number for number, (a, b) in pairs if a != b), min(len(plain), len(speculative)))
    if place >= min(len(plain), len(speculative)):
        return Divergence(place, [*plain, -1][place], [*speculative, -1][place], float("nan"))
    backend.cache.rollback(0, 0)
    text = [*prompt, *plain[:place]]
    out = backend.forward(torch.tensor([text], device=backend.cache.keys_LSKCD.device), range(1), logits="last")
    assert out.logits_BMV is not None
    logits_V = out.logits_BMV[0, -1].float()
    return Divergence(
        place, plain[place], speculative[place], float(logits_V[plain[place]] - logits_V[speculative[place]])
    )
