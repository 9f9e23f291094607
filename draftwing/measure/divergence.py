"""Where two greedy answers part, and how near the tie was."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftwing.target.backend import Backend


@dataclass(frozen=True)
class Divergence:
    """The first place where speculative and plain tokens differ.

    `gap` is the difference of the target's logits of the two tokens there, from one prefill of the plain text: in
    exact arithmetic the plain token leads by this much. None when one answer only ends where the other goes on.
    """

    place: int
    plain_token: int
    speculative_token: int
    gap: float | None


def first_divergence(
    backend: Backend, prompt: tuple[int, ...], plain: list[int], speculative: list[int]
) -> Divergence | None:
    """Compare two answers to one prompt; None when they are the same."""
    if plain == speculative:
        return None
    pairs = enumerate(zip(plain, speculative, strict=False))
    place = next((number for number, (a, b) in pairs if a != b), min(len(plain), len(speculative)))
    if place >= min(len(plain), len(speculative)):
        return Divergence(place, [*plain, -1][place], [*speculative, -1][place], None)
    backend.cache.rollback(0, 0)
    text = [*prompt, *plain[:place]]
    out = backend.forward(torch.tensor([text], device=backend.cache.keys_LSKCD.device), range(1), logits="last")
    assert out.logits_BMV is not None
    logits_V = out.logits_BMV[0, -1].float()
    return Divergence(
        place, plain[place], speculative[place], float(logits_V[plain[place]] - logits_V[speculative[place]])
    )


def rounding_between_shapes(backend: Backend, tokens: list[int], rows: int) -> float:
    """The largest difference of a logit computed among `rows` rows and alone, along `tokens`.

    Two answers can only part where the two best logits are closer than about twice this.
    """
    device = backend.cache.keys_LSKCD.device
    starts = range(max(1, len(tokens) // 8), len(tokens) - rows + 1, max(rows, len(tokens) // 8))
    worst = 0.0
    for start in starts:
        backend.cache.rollback(0, 0)
        text_1M = torch.tensor([tokens], device=device)
        backend.forward(text_1M[:, :start], range(1), logits="none")
        together = backend.forward(text_1M[:, start : start + rows], range(1)).logits_BMV
        backend.cache.rollback(0, start)
        for row in range(rows):
            alone = backend.forward(text_1M[:, start + row : start + row + 1], range(1)).logits_BMV
            assert together is not None and alone is not None
            worst = max(worst, float((together[0, row].float() - alone[0, 0].float()).abs().max()))
    return worst
