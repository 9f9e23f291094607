"""A tiny target, its tokenizer and prompts, for tests of capture."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from draftwing.capture.regenerate import Regenerator, TokenPrompt
from draftwing.formats.features import Sample
from draftwing.ops.sampling import Sampling
from draftwing.target.load import Target

TAPS = (2, 4, 5)


def token_prompts(count: int, shortest: int = 3) -> list[TokenPrompt]:
    """Prompts of random bytes and unequal lengths; ids are digests, as those of real prompts are."""
    generator = torch.Generator().manual_seed(0)
    return [
        TokenPrompt(
            hashlib.sha256(str(number).encode()).hexdigest()[:16],
            torch.randint(0, 256, (shortest + number * 7 % 29,), generator=generator).tolist(),
        )
        for number in range(count)
    ]


def answers(
    target: Target,
    prompts: list[TokenPrompt],
    slots: int = 1,
    max_new_tokens: int = 16,
    context: int = 64,
    sampling: Sampling | None = None,
) -> dict[str, Sample]:
    """Regenerated samples by prompt id."""
    worker = Regenerator(target.decoder(slots, context), TAPS, max_new_tokens, sampling or Sampling())
    samples = list(worker.run(prompts))
    assert sorted(sample.id for sample in samples) == sorted(prompt.id for prompt in prompts), "each prompt once"
    return {sample.id: sample for sample in samples}


def close(ours: Tensor, theirs: Tensor) -> bool:
    """Equal but for float32 rounding."""
    return ours.shape == theirs.shape and float((ours - theirs).norm() / theirs.norm()) < 2e-5
